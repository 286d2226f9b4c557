#include "swap/conductor/step_planner.h"

#include <algorithm>
#include <utility>

#include "core/bytes.h"

namespace spillway::swap {
namespace {

/// The number of steps whose measured times are still worth a new plan: the first ran on demand and cold, the second
/// cold in part.
constexpr int32_t kPlans = 3;
/// The share of the search that plans before the last one are worth, because they serve one step.
constexpr int32_t kEarlyShare = 4;

/// Steps that left their schedule one after another, from which on a schedule is not worth a long search, and the
/// candidates of a short one.
constexpr int32_t kOftenLeft = 2;
constexpr int32_t kFewCandidates = 8;

}  // namespace

StepPlan& StepPlanner::plan_of(std::string_view kind) {
  auto found = plans_.find(kind);
  return (found != plans_.end() ? found : plans_.try_emplace(std::string(kind)).first)->second;
}

const StepPlan* StepPlanner::find(std::string_view kind) const {
  auto found = plans_.find(kind);
  return found == plans_.end() || !found->second.planned ? nullptr : &found->second;
}

std::vector<const StepTrace*> StepPlanner::traces() const {
  std::vector<const StepTrace*> all;
  for (const auto& [name, plan] : plans_)
    if (plan.planned) all.push_back(&plan.trace);
  return all;
}

bool StepPlanner::wants_times(const StepPlan& plan) const {
  const bool is_settled = plan.times_planned >= kPlans && plan.steps_since_plan >= int64_t{StepTimes::kLatest};
  return !is_settled || plan.untimed_in_a_row + 1 >= kSteadySteps;
}

void StepPlanner::learn(StepPlan& plan, StepTrace recorded, const StepOutcome& outcome) {
  const bool as_planned = outcome.as_planned;
  keep_times(plan, recorded, outcome);
  plan.left_in_a_row = plan.planned && !as_planned ? plan.left_in_a_row + 1 : 0;
  plan.untimed_in_a_row = outcome.is_timed ? 0 : plan.untimed_in_a_row + 1;
  StepTrace& latest = as_planned ? plan.trace : recorded;
  const bool grown = count_external_growth(latest);
  if (!as_planned || grown || plan.times_planned < kPlans || plan.users != pager_.table().users())
    make(plan, std::move(latest));
  else if (outcome.is_timed)
    refresh_prediction(plan);
}

/// Counts, in every operator, what libraries have taken since the step was recorded; returns whether that is more than
/// nothing. Libraries take most of their memory in the first step, which is charged at its end.
bool StepPlanner::count_external_growth(StepTrace& trace) const {
  const int64_t growth = pager_.device().external_bytes() - trace.external_bytes;
  if (growth <= 0) return false;
  trace.add_external(growth);
  return true;
}

/// Keeps the times of a step. A step that did as planned shows how long its operators take when pages come and go as
/// planned. After another step, its own times are all that is known of the next ones: those of the host, where the step
/// was not timed, and only until a step is timed.
void StepPlanner::keep_times(StepPlan& plan, StepTrace& recorded, const StepOutcome& outcome) {
  const auto& [as_planned, is_timed, lanes] = outcome;
  if (as_planned && !is_timed) return;
  take_out_slowdown(recorded, lanes.out.seconds + lanes.in.seconds);
  if (!as_planned) {
    plan.times = {};
    plan.times_planned = 0;
  } else if (plan.times_planned == 1) {
    plan.times.forget_latest();  // it ran on demand
  }
  plan.times.note(recorded, lanes);
  inputs_.rates = plan.times.rates(inputs_.rates);
  plan.times.apply_to(as_planned ? plan.trace : recorded);
}

/// Takes the slowdown by copies out of the times. The operators ran beside copies, which slowed them; the simulation
/// adds that again for the copies of its schedule.
void StepPlanner::take_out_slowdown(StepTrace& trace, double copying_seconds) const {
  double kernels = 0;
  for (const OperatorRecord& op : trace.operators) kernels += op.seconds;
  if (kernels <= 0) return;
  const double share = std::max(0.5, 1 - inputs_.rates.compute_slowdown * copying_seconds / kernels);
  for (OperatorRecord& op : trace.operators) op.seconds *= share;
}

/// Predicts the kind's steps again. That costs one simulation, so in the end it happens once per kLatest steps, when
/// all of the latest steps are new.
void StepPlanner::refresh_prediction(StepPlan& plan) const {
  constexpr int64_t kLatest = StepTimes::kLatest;
  const int64_t steps = ++plan.steps_since_plan;
  if (steps <= kLatest || steps % kLatest == 0) predict_again(plan.schedule, plan.trace, inputs_of(plan));
}

/// Returns the inputs of the plan. Users of the pager plan for an equal share of the budget each, if their steps can
/// run in that.
ScheduleInputs StepPlanner::inputs_of(const StepPlan& plan) const {
  ScheduleInputs inputs = inputs_;
  if (const int64_t budget = inputs.budget_bytes; budget != kUnlimitedBytes && plan.users > 1)
    inputs.budget_bytes = std::max(budget / plan.users, std::min(budget, plan.trace.floor_bytes()));
  if (pager_.device().ledger().is_soft()) inputs.budget_bytes = std::max(inputs.budget_bytes, plan.trace.floor_bytes());
  if (plan.times_planned + 1 < kPlans) inputs.candidates /= kEarlyShare;
  if (plan.left_in_a_row >= kOftenLeft) inputs.candidates = std::min(inputs.candidates, kFewCandidates);
  if (inputs.host_budget_bytes != kUnlimitedBytes) inputs.host_budget_bytes /= std::max<int64_t>(1, plan.users);
  return inputs;
}

/// Makes the schedule of the kind, from now on.
void StepPlanner::make(StepPlan& plan, StepTrace trace) const {
  plan.trace = std::move(trace);
  plan.users = pager_.table().users();
  const int64_t peak_so_far = plan.schedule.predicted_peak_bytes;  // steps under earlier plans belong to the run
  plan.schedule = make_schedule(plan.trace, inputs_of(plan));
  plan.schedule.predicted_peak_bytes = std::max(plan.schedule.predicted_peak_bytes, peak_so_far);
  plan.steps_since_plan = 0;
  plan.planned = true;
  ++plan.times_planned;
  if (plan.times_planned == 1) {
    plan.persistent.clear();
    for (size_t s = 0; s < plan.trace.slots.size(); ++s)
      if (const Slot& slot = plan.trace.slots[s]; slot.death == kOutlivesStep) plan.persistent[slot.page] = s;
  }
  const size_t count = plan.trace.operators.size();
  for (auto* by_operator : {&plan.recipes, &plan.discards_after, &plan.replays_after}) by_operator->assign(count, {});
  for (const Replay& replay : plan.schedule.replays) {
    for (int32_t i : replay.operators) plan.recipes[i].push_back(replay.slot);
    plan.discards_after[replay.discard_after].push_back(replay.slot);
    if (replay.before < replay.use) plan.replays_after[replay.before - 1].push_back(replay.slot);
  }
}

}  // namespace spillway::swap
