#include "tools/ddlrun/plan.h"

#include <algorithm>
#include <functional>

#include "core/error.h"

namespace spillway::ddlrun {
namespace {

ddl::Levels levels_of(const std::string& text, const std::vector<int>& host_of_rank) {
  const int ranks = host_of_rank.size();
  if (text.empty()) return ddl::Levels(ranks, {host_of_rank});
  if (text == "hosts" || text == "discover" || text.ends_with(".xml"))
    throw BadRequest(str("--levels is '", text, "', which ranks look up; allowed: declared, as in 4x2, or --levels ",
                         text, " among the arguments of spillway"));
  try {
    return ddl::Levels::parse(text, ranks);
  } catch (const BadRequest& error) {
    throw BadRequest(str("--levels for ", ranks, " ranks: ", error.what()));
  }
}

/// Returns a note on the first group that has some ranks of a host, but not all, and ranks of another host. Messages
/// that a level takes for local would then cross hosts.
std::vector<std::string> cuts_across_hosts(const ddl::Levels& levels, const std::vector<int>& host_of_rank,
                                           const std::vector<Host>& hosts) {
  for (int level = 1; level < levels.count(); ++level)
    for (const auto& group : levels.groups(level)) {
      std::vector<int64_t> here(hosts.size());
      for (const int rank : group.ranks) ++here[host_of_rank[rank]];
      if (std::count_if(here.begin(), here.end(), [](int64_t n) { return n > 0; }) < 2) continue;
      for (size_t host = 0; host < hosts.size(); ++host)
        if (here[host] != 0 && here[host] != hosts[host].slots)
          return {str("--levels ", levels.shape(), " cut across hosts: ranks ", ranges(group.ranks),
                      " are together on level ", level, ", but only ", here[host], " of the ", hosts[host].slots,
                      " ranks of ", hosts[host].name)};
    }
  return {};
}

}  // namespace

Plan make_plan(HostList hosts, std::optional<int64_t> ranks, const std::string& levels) {
  const int64_t slots = hosts.slots(), wanted = ranks.value_or(slots);
  if (wanted < 1 || wanted > slots)
    throw BadRequest(str("-n is ", wanted, ", but the hosts have ", slots, " slots (", hosts.source,
                         "); allowed: 1 to ", slots, ", or more slots by -H host:slots,…"));
  if (wanted > kMaxSlots) throw BadRequest(str(wanted, " ranks; allowed: at most ", kMaxSlots));
  std::vector<Host> used;
  std::vector<int> host_of_rank;
  for (const Host& host : hosts.hosts) {
    const int64_t here = std::min(host.slots, wanted - std::ssize(host_of_rank));
    if (here == 0) break;
    host_of_rank.insert(host_of_rank.end(), here, used.size());
    used.push_back({host.name, here});
  }
  ddl::Levels tree = levels_of(levels, host_of_rank);
  std::vector<std::string> notes = hosts.notes;
  if (std::any_of(used.begin(), used.end(), [&](const Host& host) { return host.slots != used.front().slots; }))
    notes.push_back("hosts get unequal numbers of ranks");
  for (auto& note : cuts_across_hosts(tree, host_of_rank, used)) notes.push_back(std::move(note));
  return {std::move(hosts), std::move(used), std::move(host_of_rank), std::move(tree), std::move(notes)};
}

std::string align(const std::vector<std::vector<std::string>>& rows, const std::vector<bool>& right) {
  std::vector<size_t> widths(right.size());
  for (const auto& row : rows)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - row[i].size(), ' ');
      line += str(i == 0 ? "" : "  ", right[i] ? padding + row[i] : row[i] + padding);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string ranges(const std::vector<int>& numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    text += str(text.empty() ? "" : " ", numbers[i]);
    if (last > i) text += str("-", numbers[last]);
    i = last + 1;
  }
  return text;
}

std::string host_table(const Plan& plan) {
  std::vector<std::vector<std::string>> rows{{"host", "slots", "ranks"}};
  int next = 0;
  for (size_t i = 0; i < plan.hosts.hosts.size(); ++i) {
    const Host& host = plan.hosts.hosts[i];
    std::vector<int> ranks(i < plan.used.size() ? static_cast<size_t>(plan.used[i].slots) : 0);
    for (int& rank : ranks) rank = next++;
    rows.push_back({host.name, str(host.slots), ranks.empty() ? "-" : ranges(ranks)});
  }
  return str("hosts from ", plan.hosts.source, "\n", align(rows, {false, true, false}));
}

std::string rank_tree(const Plan& plan) {
  std::vector<int> all(plan.host_of_rank.size());
  for (size_t rank = 0; rank < all.size(); ++rank) all[rank] = rank;
  const auto label = [&](const std::vector<int>& ranks) -> std::string {
    const auto host = [&](int rank) { return plan.host_of_rank[rank]; };
    const bool one = host(ranks.front()) == host(ranks.back());
    return str(one ? plan.used[host(ranks.front())].name + ": " : "", ranks.size() == 1 ? "rank " : "ranks ",
               ranges(ranks));
  };
  /// Returns the parts that a group is drawn with: groups of the level below, at the bottom the ranks on each host.
  const auto parts = [&](int level, const std::vector<int>& ranks) {
    std::vector<std::vector<int>> parts;
    for (const int rank : ranks) {
      const auto of = [&](int r) { return level > 1 ? plan.levels.group_of(level - 1, r) : plan.host_of_rank[r]; };
      if (parts.empty() || of(parts.back().front()) != of(rank)) parts.emplace_back();
      parts.back().push_back(rank);
    }
    return parts;
  };
  std::string text = str("levels ", plan.levels.shape(), "\n", label(all), "\n");
  const std::function<void(int, const std::vector<int>&, const std::string&)> draw =
      [&](int level, const std::vector<int>& ranks, const std::string& margin) {
        const auto inside = parts(level, ranks);
        if (level <= 1 && inside.size() == 1) return;
        for (size_t i = 0; i < inside.size(); ++i) {
          text += str(margin, "+- ", label(inside[i]), "\n");
          if (level > 1) draw(level - 1, inside[i], margin + (i + 1 < inside.size() ? "|  " : "   "));
        }
      };
  draw(plan.levels.count(), all, "");
  return text;
}

}  // namespace spillway::ddlrun
