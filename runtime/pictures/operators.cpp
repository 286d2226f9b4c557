#include "runtime/pictures/operators.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "core/error.h"
#include "runtime/pictures/text.h"

namespace spillway::report {
namespace {

constexpr size_t kTopOperators = 12;

struct OperatorTime {
  std::string name;
  double seconds = 0;
  int64_t calls = 0;
};

/// Returns true for an operator, whose name has a namespace. Copies and messages beside operators take none of the
/// step's time.
bool is_operator(const TraceEvent& event) {
  return event.name.find("::") != std::string::npos;
}

std::vector<OperatorTime> operators_by_time(const std::vector<TraceEvent>& events) {
  std::map<std::string, OperatorTime> by_name;
  for (const TraceEvent& event : events) {
    if (!is_operator(event) || !std::isfinite(event.seconds)) continue;
    OperatorTime& entry = by_name[event.name];
    entry.seconds += event.seconds;
    ++entry.calls;
  }
  std::vector<OperatorTime> found;
  for (auto& [name, entry] : by_name) found.push_back({name, entry.seconds, entry.calls});
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  return found;
}

/// Folds the operators after the first kTopOperators into one.
void fold_tail(std::vector<OperatorTime>& operators) {
  if (operators.size() <= kTopOperators) return;
  OperatorTime rest{str(counted(static_cast<int64_t>(operators.size() - kTopOperators), "other")), 0, 0};
  for (size_t i = kTopOperators; i < operators.size(); ++i)
    rest.seconds += operators[i].seconds, rest.calls += operators[i].calls;
  operators.resize(kTopOperators);
  operators.push_back(std::move(rest));
}

}  // namespace

std::string bar(double fraction) {
  const double percent = std::isfinite(fraction) ? std::clamp(100 * fraction, 0., 100.) : 0;
  return str("<td class=\"bar\"><i style=\"width:", decimal(percent), "%\"></i></td>");
}

std::string draw_operators(const StepRecording& recording) {
  std::vector<OperatorTime> operators = operators_by_time(recording.events);
  if (operators.empty()) return "";
  double all = 0;
  for (const OperatorTime& entry : operators) all += entry.seconds;
  fold_tail(operators);
  const double longest = std::max_element(operators.begin(), operators.end(), [](const auto& a, const auto& b) {
                           return a.seconds < b.seconds;
                         })->seconds;
  std::string out =
      "<section><h2>Where the step's time went</h2>\n<div class=\"wide\"><table>\n"
      "<tr><th>operator</th><th>calls</th><th>time</th><th>share</th><th></th></tr>\n";
  for (const OperatorTime& entry : operators)
    out += str("<tr><th>", breakable(entry.name), "</th><td>", format_count(entry.calls), "</td><td>",
               format_seconds(entry.seconds), "</td><td>", format_percent(entry.seconds / all), "</td>",
               bar(entry.seconds / longest), "</tr>\n");
  return out + "</table></div></section>\n";
}

}  // namespace spillway::report
