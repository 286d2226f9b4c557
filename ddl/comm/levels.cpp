#include "ddl/comm/levels.h"

#include <algorithm>
#include <map>

#include "core/error.h"
#include "core/hash.h"
#include "core/parse_number.h"

namespace spillway::ddl {
namespace {

constexpr int64_t kMaxRanks = 1'000'000;

/// Maps any labels to 0, 1, 2, … in order of first appearance.
std::vector<int> ordinals(const std::vector<int>& labels) {
  std::map<int, int> known;
  std::vector<int> result;
  for (const int label : labels) result.push_back(known.emplace(label, std::ssize(known)).first->second);
  return result;
}

std::vector<Levels::Group> groups_by(const std::vector<int>& of_rank, const std::vector<int>& child_of_rank) {
  std::vector<Levels::Group> groups;
  std::vector<bool> seen(child_of_rank.size());
  for (int rank = 0; rank < std::ssize(of_rank); ++rank) {
    const int group = of_rank[rank];
    if (group == std::ssize(groups)) groups.emplace_back();
    groups[group].ranks.push_back(rank);
    const int child = child_of_rank[rank];
    if (!seen[child]) groups[group].children.push_back(child);
    seen[child] = true;
  }
  return groups;
}

/// Returns the numbers of `4x2` or `4+2`; none when the text is anything else.
std::vector<int64_t> parse_numbers(std::string_view text, char separator) {
  std::vector<int64_t> numbers;
  while (true) {
    const size_t length = std::min(text.find(separator), text.size());
    const int64_t number = parse_number<int64_t>(text.substr(0, length)).value_or(0);
    if (number < 1 || number > kMaxRanks) return {};
    numbers.push_back(number);
    if (length == text.size()) return numbers;
    text.remove_prefix(length + 1);
  }
}

}  // namespace

Levels::Levels(int size, const std::vector<std::vector<int>>& labels) : size_(size) {
  std::vector<int> below(size);
  for (int rank = 0; rank < size; ++rank) below[rank] = rank;
  auto all = labels;
  all.emplace_back(size, 0);
  for (size_t level = 0; level < all.size(); ++level) {
    if (std::ssize(all[level]) != size)
      throw BadRequest(
          str("[ddl] level ", level + 1, " is declared for ", all[level].size(), " ranks, but ", size, " are running"));
    const auto of_rank = ordinals(all[level]);
    auto groups = groups_by(of_rank, below);
    std::map<int, int> parent;
    for (int rank = 0; rank < size; ++rank)
      if (const auto [known, first] = parent.emplace(below[rank], of_rank[rank]);
          !first && known->second != of_rank[rank])
        throw BadRequest(str("[ddl] level ", level + 1, " parts rank ", rank, " from ranks that level ", level,
                             " joined; allowed: levels that join whole groups"));
    if (std::all_of(groups.begin(), groups.end(), [](const Group& group) { return group.children.size() == 1; }))
      continue;
    groups_.push_back(std::move(groups));
    group_of_.push_back(of_rank);
    below = of_rank;
  }
}

Levels Levels::parse(std::string_view text, int size) {
  const bool uneven = text.find('+') != std::string_view::npos;
  std::vector<int64_t> numbers = parse_numbers(text, uneven ? '+' : 'x');
  if (numbers.empty())
    throw BadRequest(str("[ddl] levels '", text,
                         "'; allowed: ranks per host x hosts x …, as in 4x2, or the ranks of each host, as in 4+2"));
  int64_t declared = uneven ? 0 : 1;
  for (const int64_t number : numbers)
    declared = std::min(kMaxRanks + 1, uneven ? declared + number : declared * number);
  if (declared != size)
    throw BadRequest(str("[ddl] levels '", text, "' make ", declared > kMaxRanks ? "too many" : str(declared),
                         " ranks, but ", size, " are running"));
  std::vector<std::vector<int>> labels;
  if (uneven) {
    auto& hosts = labels.emplace_back();
    for (int host = 0; host < std::ssize(numbers); ++host) hosts.insert(hosts.end(), numbers[host], host);
  } else {
    int64_t width = 1;
    for (const int64_t number : numbers) {
      width *= number;
      auto& groups = labels.emplace_back();
      for (int rank = 0; rank < size; ++rank) groups.push_back(rank / width);
    }
  }
  return Levels(size, labels);
}

int Levels::group_of(int level, int rank) const {
  return level == 0 ? rank : group_of_[level - 1][rank];
}

int Levels::joining(int one, int other) const {
  int level = 0;
  while (group_of(level, one) != group_of(level, other)) ++level;
  return level;
}

std::vector<std::vector<int>> Levels::labels() const {
  return group_of_;
}

std::string Levels::shape_of(int level, int group) const {
  if (level == 0) return "1";
  const auto& children = groups(level)[group].children;
  if (level == 1) return str(children.size());
  std::vector<std::string> parts;
  for (const int child : children) parts.push_back(shape_of(level - 1, child));
  const bool alike = std::all_of(parts.begin(), parts.end(), [&](const auto& part) { return part == parts.front(); });
  if (alike) return parts.size() == 1 ? parts.front() : str(parts.front(), "x", parts.size());
  std::string text;
  for (const auto& part : parts) {
    const bool sum = part.find('+') != std::string::npos;
    text += str(text.empty() ? "" : "+", sum ? "(" : "", part, sum ? ")" : "");
  }
  return text;
}

std::string Levels::shape() const {
  return shape_of(count(), 0);
}

uint64_t Levels::hash() const {
  uint64_t hash = hash_in(kHashSeed, size_);
  for (const auto& level : group_of_)
    for (const int group : level) hash = hash_in(hash, group);
  return hash;
}

}  // namespace spillway::ddl
