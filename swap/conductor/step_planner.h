/// Plans of each kind of step, made from the steps of the kind so far.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "swap/pager/pager.h"
#include "swap/schedule/schedule.h"
#include "swap/schedule/step_times.h"
#include "swap/schedule/step_trace.h"

namespace spillway::swap {

/// The record of the steps of one kind, and the plan for the next one.
struct StepPlan {
  bool planned = false;
  StepTrace trace;
  Schedule schedule;
  std::unordered_map<PageId, int32_t> persistent;    ///< slots that outlive the step, by page
  std::vector<std::vector<int32_t>> recipes;         ///< by operator: slots whose recipes its call belongs to
  std::vector<std::vector<int32_t>> discards_after;  ///< by operator: slots that are discarded
  std::vector<std::vector<int32_t>> replays_after;   ///< by operator: slots that are made again ahead of their use

  StepTimes times;
  int64_t steps_since_plan = 0;  ///< timed ones
  int64_t untimed_in_a_row = 0;
  int32_t times_planned = 0;
  int32_t left_in_a_row = 0;  ///< latest steps that left their schedule
  int64_t users = 0;          ///< the pager's users when it was planned
};

/// How a step went.
struct StepOutcome {
  bool as_planned = false;  ///< it followed its schedule to the end
  bool is_timed = true;     ///< its trace has the times of its operators
  LaneTotals lanes = {};    ///< totals of the copies meanwhile
};

/// Plans steps. The first step of a kind gives the schedule that the next ones follow. The first few of those are
/// planned anew with the times that were measured under the schedule. Its prediction and bound follow the times of
/// later ones. A step that did something else is planned anew. So is a step after libraries have taken more memory, and
/// after the number of users that share the budget has changed, because each user plans for an equal share.
class StepPlanner {
 public:
  StepPlanner(Pager& pager, const ScheduleInputs& inputs) : pager_(pager), inputs_(inputs) {}

  /// Returns the plan of a kind, which keeps its address.
  StepPlan& plan_of(std::string_view kind);
  /// Returns the plan of a kind; nullptr before a step of the kind was planned.
  const StepPlan* find(std::string_view kind) const;
  std::vector<const StepTrace*> traces() const;
  /// Learns from a step.
  void learn(StepPlan& plan, StepTrace recorded, const StepOutcome& outcome);
  /// True when the times of the kind's next step are worth their cost, where timing has one: until the plan is the last
  /// one and its prediction follows recent steps, and in one of kSteadySteps steps from then on.
  bool wants_times(const StepPlan& plan) const;
  static constexpr int64_t kSteadySteps = 8;

 private:
  bool count_external_growth(StepTrace& trace) const;
  void keep_times(StepPlan& plan, StepTrace& recorded, const StepOutcome& outcome);
  void take_out_slowdown(StepTrace& trace, double copying_seconds) const;
  void refresh_prediction(StepPlan& plan) const;
  ScheduleInputs inputs_of(const StepPlan& plan) const;
  void make(StepPlan& plan, StepTrace trace) const;

  Pager& pager_;
  ScheduleInputs inputs_;
  std::map<std::string, StepPlan, std::less<>> plans_;
};

}  // namespace spillway::swap
