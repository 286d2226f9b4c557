#include "ddl/plan.h"

#include <algorithm>
#include <charconv>

#include "core/bytes.h"
#include "core/error.h"
#include "ddl/agreement.h"

namespace spillway::ddl {

int64_t Plan::Cut::in(int64_t count) const {
  // count · numerator / denominator without overflow for any count.
  return count / denominator * numerator + count % denominator * numerator / denominator;
}

Plan::Plan(std::vector<int> hosts) : hosts_(std::move(hosts)) {
  for (int rank = 0; rank < size(); ++rank) {
    const int host = hosts_[rank];
    if (host < 0 || host > host_count()) {
      throw BadRequest(str("[ddl] rank ", rank, " is on host ", host, "; hosts are numbered from 0 without gaps"));
    }
    if (host == host_count()) ranks_.emplace_back();
    local_ranks_.push_back(static_cast<int>(ranks_[host].size()));
    ranks_[host].push_back(rank);
  }
  for (const auto& ranks : ranks_) {
    const auto size = static_cast<int64_t>(ranks.size());
    for (int64_t i = 0; i <= size; ++i) cuts_.push_back({i, size});
  }
  const auto before = [](Cut a, Cut b) { return a.numerator * b.denominator < b.numerator * a.denominator; };
  const auto same = [&](Cut a, Cut b) { return !before(a, b) && !before(b, a); };
  std::sort(cuts_.begin(), cuts_.end(), before);
  cuts_.erase(std::unique(cuts_.begin(), cuts_.end(), same), cuts_.end());
  for (const auto& ranks : ranks_) {
    auto& in_charge = in_charge_.emplace_back();
    for (int64_t block = 0; block < block_count(); ++block) {
      in_charge.push_back(ranks[cuts_[block].in(static_cast<int64_t>(ranks.size()))]);
    }
  }
}

int Plan::levels() const noexcept {
  if (size() == 1) return 0;
  return host_count() == 1 || host_count() == size() ? 1 : 2;
}

Range Plan::blocks_of(int host, int local) const {
  const auto& in_charge = in_charge_[host];
  const auto [first, last] = std::equal_range(in_charge.begin(), in_charge.end(), ranks_[host][local]);
  return {first - in_charge.begin(), last - in_charge.begin()};
}

Range Plan::piece(int host, int local, int64_t count) const {
  const Range blocks = blocks_of(host, local);
  return {cuts_[blocks.begin].in(count), cuts_[blocks.end].in(count)};
}

Range Plan::part(int64_t block, int host, int64_t count) const {
  const int64_t begin = cuts_[block].in(count);
  const int64_t length = cuts_[block + 1].in(count)-begin;
  return {begin + Cut{host, host_count()}.in(length), begin + Cut{host + 1, host_count()}.in(length)};
}

int64_t Plan::scratch_elements(int64_t count) const {
  // Level 1: L-1 contributions to a piece; level 2: N-1 contributions to 1/N of it, which is less. Rounding adds at
  // most one element per contribution and block.
  int64_t most = 0;
  for (const auto& ranks : ranks_) {
    const auto size = static_cast<int64_t>(ranks.size());
    most = std::max(most, (size - 1) * (count / size + 1));
    most = std::max(most, (host_count() - 1) * (count / size / host_count() + block_count() + 1));
  }
  return most;
}

uint64_t Plan::hash() const {
  uint64_t hash = kHashSeed;
  for (const int host : hosts_) hash = hash_in(hash, host);
  return hash;
}

std::string Plan::shape() const {
  std::string text;
  for (const auto& ranks : ranks_) text += str(text.empty() ? "" : "+", ranks.size());
  return text;
}

std::string Plan::explain(int64_t bytes) const {
  std::string text = str("allreduce of ", format_bytes(bytes), " over ", size(), " ranks on ", host_count(),
                         host_count() == 1 ? " host (" : " hosts (", shape(), ")\n");
  if (levels() == 0) return text + "  nothing to send\n";
  const auto [fewest, widest] = std::minmax_element(ranks_.begin(), ranks_.end(),
                                                    [](const auto& a, const auto& b) { return a.size() < b.size(); });
  int level = 0;
  if (const auto width = static_cast<int64_t>(widest->size()); width > 1) {
    text +=
        str("  level ", ++level, ", within a host (", shape(), "): direct reduce-scatter, all-gather; each rank sends ",
            format_bytes(2 * (width - 1) * (bytes / width)), "\n");
  }
  if (const int64_t hosts = host_count(); hosts > 1) {
    const int64_t uplink = 2 * (hosts - 1) * (bytes / hosts);
    text += str("  level ", ++level, ", between ", hosts, " hosts: direct reduce-scatter, all-gather; each host sends ",
                format_bytes(uplink), " (the bound), at most ",
                format_bytes(uplink / static_cast<int64_t>(fewest->size())), " a rank\n");
  }
  return text;
}

namespace {

constexpr int64_t kMostRanks = 1'000'000;

/// The numbers of `4x2` or `4+2`; empty when the text is anything else.
std::vector<int64_t> parse_numbers(std::string_view text, char separator) {
  std::vector<int64_t> numbers;
  while (true) {
    const size_t length = std::min(text.find(separator), text.size());
    int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + length, number);
    if (error != std::errc() || end != text.data() + length || number < 1 || number > kMostRanks) return {};
    numbers.push_back(number);
    if (length == text.size()) return numbers;
    text.remove_prefix(length + 1);
  }
}

}  // namespace

std::vector<int> parse_levels(std::string_view text, int world_size) {
  const bool uneven = text.find('+') != std::string_view::npos;
  std::vector<int64_t> widths = parse_numbers(text, uneven ? '+' : 'x');
  if (widths.empty()) {
    throw BadRequest(str("[ddl] levels '", text,
                         "'; allowed: ranks per host x hosts x …, as in 4x2, or the ranks of each host, as in 4+2"));
  }
  if (!uneven) {
    int64_t hosts = 1;
    for (size_t level = 1; level < widths.size() && hosts < kMostRanks; ++level) hosts *= widths[level];
    widths.assign(std::min(hosts, kMostRanks), widths[0]);
  }
  int64_t declared = 0;
  for (const int64_t width : widths) declared += width;
  if (declared != world_size) {
    throw BadRequest(str("[ddl] levels '", text, "' make ", declared, " ranks, but ", world_size, " are running"));
  }
  std::vector<int> hosts;
  for (size_t host = 0; host < widths.size(); ++host) hosts.insert(hosts.end(), widths[host], static_cast<int>(host));
  return hosts;
}

}  // namespace spillway::ddl
