#include "ddl/allreduce/explain.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "core/bytes.h"
#include "core/error.h"

namespace spillway::ddl {
namespace {

LevelExplanation explain_level(const Plan& plan, int level, int64_t bytes) {
  const auto& groups = plan.levels().groups(level);
  LevelExplanation of_level;
  of_level.algorithm = plan.algorithms()[level - 1];
  of_level.groups = std::ssize(groups);
  const auto children = [](const Levels::Group& group) { return std::ssize(group.children); };
  for (const auto& group : groups) of_level.joined = std::max(of_level.joined, children(group));
  of_level.alike =
      std::all_of(groups.begin(), groups.end(), [&](const auto& group) { return children(group) == of_level.joined; });
  of_level.least_bytes = 2 * (of_level.joined - 1) * (bytes / of_level.joined);
  return of_level;
}

std::string time(double seconds) {
  char text[32];
  if (seconds < 1e-3)
    std::snprintf(text, sizeof text, "%.1f us", 1e6 * seconds);
  else if (seconds < 1)
    std::snprintf(text, sizeof text, "%.2f ms", 1e3 * seconds);
  else
    std::snprintf(text, sizeof text, "%.2f s", seconds);
  return text;
}

/// Returns the times that are known, behind `mark`: `; at least 3 ms, predicted 4 ms, waited 5 ms`.
std::string times(const char* mark, const std::optional<double>& least, const std::optional<double>& predicted,
                  const char* verb, const std::optional<double>& achieved) {
  std::string text;
  const auto add = [&](const char* word, const std::optional<double>& seconds) {
    if (seconds) text += str(text.empty() ? mark : ", ", word, " ", time(*seconds));
  };
  add("at least", least);
  add("predicted", predicted);
  add(verb, achieved);
  return text;
}

std::string percent_of(const std::optional<double>& bound, const std::optional<double>& seconds) {
  if (!bound || !seconds || *seconds <= 0) return "";
  return str(" (", std::lround(100 * *bound / *seconds), " % of the bound)");
}

}  // namespace

Explanation explain(const Choice& choice, int64_t count, Element element, const std::optional<Costs>& costs,
                    const AllreduceTotals& totals) {
  const Plan& plan = choice.plan;
  Explanation all;
  all.ranks = plan.size();
  all.shape = plan.levels().shape();
  all.bytes = count * element_bytes(element);
  all.chunk_bytes = choice.options.chunk_bytes;
  const auto traffic = plan.traffic(count, element);
  for (int level = 1; level <= plan.levels().count(); ++level) {
    all.levels.push_back(explain_level(plan, level, all.bytes));
    all.levels.back().traffic = traffic[level - 1];
  }
  if (costs) {
    const Prediction prediction = predict(choice, count, element, *costs);
    all.bound_seconds = bound_seconds(plan.levels(), all.bytes, *costs);
    all.predicted_seconds = prediction.seconds;
    all.predicted_adding_seconds = prediction.adding_seconds;
    for (size_t i = 0; i < all.levels.size(); ++i) {
      all.levels[i].bound_seconds = link_bound_seconds(plan.levels(), i + 1, all.bytes, *costs);
      all.levels[i].predicted_seconds = prediction.level_seconds[i];
    }
  }
  if (totals.calls == 0) return all;
  const auto of_a_call = [&](std::chrono::nanoseconds time) {
    return std::chrono::duration<double>(time).count() / static_cast<double>(totals.calls);
  };
  all.seconds = of_a_call(totals.time);
  all.adding_seconds = of_a_call(totals.rounds.adding);
  for (size_t i = 0; i < totals.rounds.waited.size(); ++i)  // none where all vectors were empty
    all.levels[i].waited_seconds = of_a_call(totals.rounds.waited[i]);
  return all;
}

std::string Allreduce::describe(int64_t count, Element element) const {
  return ddl::describe(explain({plan(), options()}, count, element, std::nullopt, totals()));
}

std::string describe(const Explanation& all) {
  std::string text = str("allreduce of ", format_bytes(all.bytes), " over ", all.ranks);
  if (all.levels.empty()) return text + (all.ranks == 1 ? " rank\n  nothing to send\n" : " ranks\n");
  text += str(" ranks (", all.shape, ")");
  if (all.bytes > all.chunk_bytes) text += str(" in chunks of ", format_bytes(all.chunk_bytes));
  text += "\n";
  int number = 0;
  for (const LevelExplanation& level : all.levels) {
    ++number;
    text +=
        str("  level ", number, ", ", level.groups, level.groups == 1 ? " group of " : " groups of ",
            level.alike ? "" : "up to ", level.joined, number == 1 ? " ranks: " : " groups: ", name_of(level.algorithm),
            "; a rank sends ", format_bytes(level.traffic.sent_by_rank));
    if (number > 1)
      text += str(", a group ", format_bytes(level.traffic.sent_by_group), " (at least ",
                  format_bytes(level.least_bytes), ")");
    text += times("; ", level.bound_seconds, level.predicted_seconds, "waited", level.waited_seconds);
    text += percent_of(level.bound_seconds, all.seconds) + "\n";
  }
  if (const auto adding = times(": ", {}, all.predicted_adding_seconds, "took", all.adding_seconds); !adding.empty())
    text += "  adding" + adding + "\n";
  if (const auto whole = times(": ", all.bound_seconds, all.predicted_seconds, "took", all.seconds); !whole.empty())
    text += "  in all" + whole + percent_of(all.bound_seconds, all.seconds) + "\n";
  return text;
}

}  // namespace spillway::ddl
