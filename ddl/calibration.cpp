#include "ddl/calibration.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>

#include "core/error.h"
#include "ddl/arithmetic.h"
#include "ddl/collectives.h"

namespace spillway::ddl {
namespace {

constexpr int kLatencyRepeats = 30;
constexpr int kManyMessages = 16;
constexpr int kExchanges = 4;
/// Whole messages first; then what a network, or MPI over it, may send off without asking the other end.
constexpr std::array<int64_t, 4> kPieces{kWhole, 60 << 10, 28 << 10, 12 << 10};

double seconds_of(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median_seconds(int repeats, const std::function<void()>& body) {
  body();  // connections are made, memory is touched
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) seconds.push_back(seconds_of(body));
  std::nth_element(seconds.begin(), seconds.begin() + repeats / 2, seconds.end());
  return seconds[static_cast<size_t>(repeats) / 2];
}

/// The largest of all ranks' numbers.
double slowest(Communicator& comm, double own) {
  std::vector<double> all(static_cast<size_t>(comm.size()));
  allgather(comm, std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all)));
  return *std::max_element(all.begin(), all.end());
}

/// Whom a rank sends to and hears from on a level, and whether it takes part in what one or all ranks do.
struct Part {
  int next = -1;
  int previous = -1;
  int local = 0;  ///< among its child's ranks
  int width = 1;  ///< of the smallest child: so many ranks of each take part

  bool takes_part(int ranks) const { return next >= 0 && local < ranks; }
};

Part part_played_by(const Levels& levels, int level, int rank) {
  const auto& group = levels.groups(level)[static_cast<size_t>(levels.group_of(level, rank))];
  const auto ranks_of = [&](int child) {
    return level == 1 ? std::vector{child} : levels.groups(level - 1)[static_cast<size_t>(child)].ranks;
  };
  Part part;
  size_t width = ranks_of(group.children.front()).size(), own = 0;
  for (size_t c = 0; c < group.children.size(); ++c) {
    const auto ranks = ranks_of(group.children[c]);
    width = std::min(width, ranks.size());
    const auto found = std::find(ranks.begin(), ranks.end(), rank);
    if (found == ranks.end()) continue;
    own = c;
    part.local = static_cast<int>(found - ranks.begin());
  }
  part.width = static_cast<int>(width);
  const size_t n = group.children.size();
  if (n == 1 || part.local >= part.width) return part;
  const auto counterpart = [&](size_t child) {
    return ranks_of(group.children[child % n])[static_cast<size_t>(part.local)];
  };
  part.next = counterpart(own + 1);
  part.previous = counterpart(own + n - 1);
  return part;
}

/// Every rank that takes part sends `out` in messages of `piece` bytes to the next one, and receives as many.
void exchange(Communicator& comm, const Part& part, size_t piece, std::span<const std::byte> out,
              std::span<std::byte> in, int level) {
  std::vector<Request> requests;
  for (size_t begin = 0; begin < out.size(); begin += piece) {
    const size_t bytes = std::min(piece, out.size() - begin);
    requests.push_back(comm.receive(part.previous, Tag::blob, in.subspan(begin, bytes)));
    requests.push_back(comm.send(part.next, Tag::blob, out.subspan(begin, bytes)));
  }
  comm.wait(requests, {.collective = "calibration", .level = level, .levels = comm.levels().count(), .stage = 1});
}

double reduce_seconds_per_byte(Communicator& comm) {
  constexpr int64_t kCount = 1 << 18;
  std::vector<float> a(kCount, 1.0f), b(kCount, 2.0f);
  const std::array<Term, 2> terms{Term{a.data(), true}, {b.data(), false}};
  barrier(comm);
  const double seconds = median_seconds(9, [&] { combine(Element::float32, Reduction::sum, a.data(), terms, kCount); });
  return slowest(comm, seconds) / static_cast<double>(kCount * sizeof(float));
}

}  // namespace

void CalibrationOptions::validate() const {
  if (message_bytes < 1024 || message_bytes > int64_t{1} << 30)
    throw BadRequest(str("[ddl] message_bytes is ", message_bytes, "; allowed: 1024 (1 KiB) to 1073741824 (1 GiB)"));
  if (repeats < 1 || repeats > 1000) throw BadRequest(str("[ddl] repeats is ", repeats, "; allowed: 1 to 1000"));
}

Costs calibrate(Communicator& comm, CalibrationOptions options) {
  options.validate();
  Costs costs;
  std::vector<std::byte> out(static_cast<size_t>(options.message_bytes)), in(out.size());
  for (int level = 1; level <= comm.levels().count(); ++level) {
    const Part part = part_played_by(comm.levels(), level, comm.rank());
    const auto own_seconds = [&](int ranks, int repeats, size_t piece, size_t bytes, int exchanges = 1) {
      barrier(comm);
      if (!part.takes_part(ranks)) return 0.0;
      return median_seconds(repeats, [&] {
        for (int i = 0; i < exchanges; ++i) exchange(comm, part, piece, std::span(out).first(bytes), in, level);
      });
    };
    LinkCost& link = costs.levels.emplace_back();
    link.latency_seconds = slowest(comm, own_seconds(1, kLatencyRepeats, 8, 8));
    const double many = slowest(comm, own_seconds(1, kLatencyRepeats, 8, 8 * kManyMessages));
    link.message_seconds = std::max(0.0, many - link.latency_seconds) / (kManyMessages - 1);
    // One exchange after another, as rounds are: what both ends settle before a large message counts.
    const auto each = static_cast<size_t>(std::max<int64_t>(1, options.message_bytes / part.width / kExchanges));
    const double bytes = static_cast<double>(each) * part.width * kExchanges;
    for (const int64_t piece : kPieces) {
      const double seconds = own_seconds(part.width, options.repeats, static_cast<size_t>(piece), each, kExchanges);
      const double rate = 1 / slowest(comm, std::max(1e-15, (seconds - kExchanges * link.latency_seconds) / bytes));
      // Fewer messages, unless more are clearly faster.
      if (rate < 1.1 * link.bytes_per_second) continue;
      link.bytes_per_second = rate;
      link.piece_bytes = piece;
    }
  }
  costs.reduce_seconds_per_byte = reduce_seconds_per_byte(comm);
  return costs;
}

}  // namespace spillway::ddl
