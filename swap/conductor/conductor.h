/// Follows a step operator by operator: records its trace, and carries out on the pager what the schedule says.
#pragma once
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/compute_clock.h"
#include "swap/pager/pager.h"
#include "swap/pager/recipe_source.h"
#include "swap/schedule/schedule.h"
#include "swap/schedule/step_times.h"
#include "swap/schedule/step_trace.h"

namespace spillway {

/// A storage seen for the first time while a step ran.
struct Birth {
  Page* page;
  int32_t position;       ///< among the operator's storages: arguments from 0, outputs from kOutputPosition
  bool streamed = false;  ///< an output that is made window by window
};
inline constexpr int32_t kOutputPosition = 1 << 20;

/// What an operator is, as the trace keeps it.
struct OperatorCall {
  const void* identity;   ///< equal for equal operators of one process
  std::string_view name;  ///< lives as long as the process
  bool replayable;        ///< see OperatorRecord
};

/// One trace and one schedule per kind of step. The first step of a kind pages on demand, helped by what usually comes
/// next (Pager::work_ahead_of_demand); its trace gives the schedule
/// that the next steps of the kind follow; the first few of those are planned anew with the times that were measured
/// under the schedule, and its prediction and bound follow the times of later ones. A step that does something else
/// (another operator, another size) falls back to demand for its rest, and is planned anew at its end; so is a step
/// after the number of users that share the budget has changed, each planning for an equal share. Used by one thread,
/// the one that runs the steps.
class Conductor {
 public:
  /// `recipes` may be null: then nothing is replayed.
  Conductor(Pager& pager, ScheduleInputs inputs, bool follow_schedules, UserId user, RecipeBook* recipes = nullptr);

  /// Throws std::logic_error when a step is open.
  void begin_step(std::string_view kind);
  /// Makes or keeps the kind's schedule. `measured`, if any, says how long the step's operators took on a device that
  /// the host does not wait for.
  void end_step(std::span<const OperatorClock::Times> measured = {});
  /// Forgets the open step (an exception went through it); schedules stay.
  void abandon_step() noexcept;
  bool in_step() const noexcept { return in_step_; }
  /// Whose the pages of its steps are.
  UserId user() const noexcept { return user_; }

  /// Before the kernel, its pages leased but for those in `streamed`, which it uses window by window. Fills in the
  /// uses' next use. Outside steps, only what the operator needs is counted.
  void begin_operator(const OperatorCall& call, std::span<PageUse> uses, std::span<PageUse> streamed,
                      std::span<const Birth> new_arguments);
  /// When the schedule uses the output of the operator under way at `position` next; kNextUseUnknown: never again in
  /// its sight. Nothing when there is no schedule to ask.
  std::optional<int64_t> expected_next_use(int32_t position) const;
  bool following() const noexcept { return in_step_ && following_; }
  /// The slots whose recipes this operator's call belongs to. Between begin_operator and act.
  std::span<const int32_t> recipes_here() const;
  /// The page that is this slot of the schedule now; 0 when there is none.
  PageId page_of_slot(int32_t plan_slot) const { return live_[static_cast<size_t>(plan_slot)]; }
  /// After the kernel; `seconds` without waits, `own_bytes` its outputs and scratch at their largest.
  void end_operator(double seconds, int64_t own_bytes, std::span<const Birth> new_outputs);
  /// The neediest operator so far, in steps of every kind and outside them.
  const Need& neediest() const noexcept { return neediest_; }
  /// Once the leases have ended: starts the page-outs and prefetches that hang on this operator.
  void act();

  /// The trace of the last whole step of this kind; nullptr before there is one.
  const StepTrace* trace(std::string_view kind) const;
  const Schedule* schedule(std::string_view kind) const;
  std::vector<const StepTrace*> traces() const;
  /// Steps that left their schedule.
  int64_t deviations() const noexcept { return deviations_; }
  /// Operators seen inside steps.
  int64_t operators() const noexcept { return operators_; }

 private:
  struct Kind {
    StepTrace trace;
    Schedule schedule;
    std::unordered_map<PageId, int32_t> lasting;  // slots that outlive the step, by page
    StepTimes times;
    int64_t steps_since_plan = 0;
    bool planned = false;
    int32_t times_planned = 0;
    std::vector<std::vector<int32_t>> recipes;         // by operator: slots whose recipes its call belongs to
    std::vector<std::vector<int32_t>> discards_after;  // by operator: slots
    std::vector<std::vector<int32_t>> replays_after;   // by operator: slots that are made again ahead of their use
    int64_t users = 0;                                 // of the pager when it was planned
  };

  void plan(StepTrace trace);
  void keep_times(bool as_planned);
  void refresh_prediction();
  ScheduleInputs inputs_of(const Kind& kind) const;
  void take_out_slowdown(StepTrace& trace, double copying_seconds) const;
  void set_times(std::span<const OperatorClock::Times> measured);
  double seconds_since_last_operator() const;
  void adopt_existing_pages();
  /// A page's slots in the trace being recorded and in the schedule.
  struct Tag {
    int32_t trace_slot;
    int32_t plan_slot;
  };

  Tag& tag_of(Page& page);
  int32_t new_slot(Page& page, int32_t birth, bool as_output);
  void note_use(PageUse& use, std::vector<int32_t>& slots);
  void count_leased(std::span<const PageUse> uses);
  void match_birth(const Birth& birth, int32_t slot);
  int64_t absolute_next_use(int32_t plan_slot) const;
  void note_ended();
  void replay_ahead(PageId page);
  void deviate();

  Pager& pager_;
  ScheduleInputs inputs_;
  const bool follow_schedules_;
  const UserId user_;
  RecipeBook* const recipes_;
  std::map<std::string, Kind, std::less<>> kinds_;
  Kind* kind_ = nullptr;

  bool in_step_ = false;
  bool following_ = false;
  bool matched_ = true;  // every storage of the step was the schedule's
  StepTrace recording_;
  std::unordered_map<PageId, Tag> tags_;  // of the open step's pages
  int64_t base_ = 0;                      // the pager's ticks before the step: next uses count on over steps
  int32_t index_ = -1;                    // operator that runs, or ran last
  std::vector<PageId> live_;              // by plan slot
  size_t next_page_in_ = 0;
  std::vector<PageId> ended_;
  std::chrono::steady_clock::time_point last_end_;  // of the operator before
  double delayed_ = 0;                              // the pager's delays until then
  LaneTotals copied_before_;                        // when the step began
  Need need_;                                       // of the operator that runs
  Need neediest_;
  int64_t deviations_ = 0;
  int64_t operators_ = 0;
};

}  // namespace spillway
