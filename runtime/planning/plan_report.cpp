#include "runtime/planning/plan_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "core/bytes.h"
#include "core/error.h"

namespace spillway::runtime {
namespace {

/// Shares of a step's time below which two plans count as equally fast.
constexpr double kAlike = 0.005;

std::string percent(double share) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2g %%", 100 * share);
  return text.data();
}

/// Returns `5 % slower` of a plan beside another, both feasible.
std::string compared(const RunPlan& plan, const RunPlan& with) {
  const double ratio = plan.best().forecast.seconds / with.best().forecast.seconds;
  if (std::abs(ratio - 1) < kAlike) return "as fast";
  return percent(std::abs(ratio - 1)) + (ratio > 1 ? " slower" : " faster");
}

}  // namespace

std::string under_another_budget(const RunPlan& other, const RunPlan& plan) {
  std::string text = str("with ", format_bytes(other.budget_bytes), ": ");
  if (!other.is_feasible()) return text + str("does not fit; the floor is ", format_bytes(other.best().floor_bytes));
  const std::string choice = describe(other.best().choice);
  if (!plan.is_feasible()) return text + str("fits, by ", choice);
  if (choice == describe(plan.best().choice)) return text + str("the same choice, ", compared(other, plan));
  return text + str(choice, ", ", compared(other, plan));
}

namespace {

std::string line(const char* title, const std::string& text) {
  std::array<char, 16> padded{};
  std::snprintf(padded.data(), padded.size(), "%-9s", title);
  return padded.data() + text + "\n";
}

/// Returns what a proposal would save.
std::string saved_by(const Proposal& proposal, const RunPlan& plan) {
  const std::string what = str("--allow ", proposal.name, " (", proposal.flags, "): ");
  const int64_t floor = proposal.plan.best().floor_bytes;
  if (!proposal.plan.is_feasible()) return str(what, "a floor of ", format_bytes(floor), ", which is too much still");
  if (!plan.is_feasible()) return str(what, "fits, with a floor of ", format_bytes(floor));
  return str(what, compared(proposal.plan, plan), ", with a floor of ", format_bytes(floor));
}

}  // namespace

std::string explain(const PlanReport& report) {
  std::string text = line("chosen", report.plan.reason());
  for (const Proposal& change : report.taken) text += line("allowed", str(change.name, " is taken: ", change.flags));
  if (report.smaller) text += line("smaller", under_another_budget(*report.smaller, report.plan));
  if (report.larger) text += line("larger", under_another_budget(*report.larger, report.plan));
  for (const Proposal& proposal : report.proposals) text += line("proposed", saved_by(proposal, report.plan));
  return text;
}

}  // namespace spillway::runtime
