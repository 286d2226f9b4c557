/// The conductor, which follows a step operator by operator: it records the trace, and carries out the schedule on the
/// pager.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/compute_clock.h"
#include "swap/conductor/schedule_follower.h"
#include "swap/conductor/step_planner.h"
#include "swap/conductor/trace_recorder.h"
#include "swap/pager/pager.h"
#include "swap/pager/replay_recipe.h"

namespace spillway::swap {

/// Keeps one trace and one schedule per kind of step. The first step of a kind pages on demand, helped by copies that
/// are likely to be needed (Prefetcher::work_without_schedule). Its trace gives the schedule that the next ones follow
/// (StepPlanner). A step that does something else falls back to demand for its rest (ScheduleFollower). Used by one
/// thread, the one that runs the steps.
class Conductor {
 public:
  /// Makes a conductor. `recipes` may be null: then nothing is replayed.
  Conductor(Pager& pager, ScheduleInputs inputs, bool follow_schedules, UserId user, RecipeSource* recipes = nullptr);

  /// Begins a step. Throws std::logic_error when a step is open.
  void begin_step(std::string_view kind);
  /// Ends the step, and makes or keeps the kind's schedule. `measured`, if any, holds the times of the step's operators
  /// on a device that the host does not wait for. Without them the host's times count if the step `is_timed`; else it
  /// has none.
  void end_step(std::span<const ComputeClock::Times> measured = {}, bool is_timed = true);
  /// True when the times of the open step would improve the kind's plan or prediction (StepPlanner::wants_times).
  bool wants_times() const { return planner_.wants_times(*plan_); }
  /// Forgets the open step (an exception went through it); schedules stay.
  void abandon_step() noexcept;
  bool in_step() const noexcept { return in_step_; }
  /// Returns the pager user that owns this Session's pages.
  UserId user() const noexcept { return user_; }

  /// Begins an operator before its kernel. Its pages are leased, except those in `streamed`, which it uses window by
  /// window. Fills in the uses' next use. Outside steps, only the operator's need is counted.
  void begin_operator(const OperatorCall& call, std::span<PageUse> uses, std::span<PageUse> streamed,
                      std::span<const Birth> new_arguments);
  /// Returns when the schedule uses the output of the operator under way at `position` next; kNextUseUnknown: never
  /// again in its sight. Returns nothing when there is no schedule to ask.
  std::optional<int64_t> expected_next_use(int32_t position) const;
  bool following() const noexcept { return in_step_ && follower_.following(); }
  /// Returns the slots whose recipes this operator's call belongs to. Called between begin_operator and issue_copies.
  std::span<const int32_t> recipes_here() const;
  /// Returns the page that is this slot of the schedule now; 0 when there is none.
  PageId page_of_slot(int32_t slot) const { return follower_.page_of_slot(slot); }
  /// Ends the operator after its kernel. `seconds` excludes waits; `own_bytes` is the maximum of its outputs and
  /// scratch.
  void end_operator(double seconds, int64_t own_bytes, std::span<const Birth> new_outputs);
  /// Returns the need of the neediest operator so far, in steps of every kind and outside them.
  const Need& neediest() const noexcept { return neediest_; }
  /// Starts the page-outs and prefetches that the schedule ties to this operator. Called once its leases have ended.
  void issue_copies();

  /// Returns the listener that adds messages to the trace of the open step.
  MessageListener& messages() noexcept { return recorder_; }

  /// Returns the trace of the last whole step of this kind; nullptr before there is one.
  const StepTrace* trace(std::string_view kind) const;
  const Schedule* schedule(std::string_view kind) const;
  std::vector<const StepTrace*> traces() const { return planner_.traces(); }
  /// Returns how many steps left their schedule.
  int64_t deviations() const noexcept { return follower_.deviations(); }
  /// Returns how many operators were seen inside steps.
  int64_t operators() const noexcept { return operators_; }

 private:
  void adopt_existing_pages();
  void record_destroyed();
  void record_use(PageUse& use, bool streamed);
  void count_leased(std::span<const PageUse> uses);

  Pager& pager_;
  const bool follow_schedules_;
  const UserId user_;
  StepPlanner planner_;
  TraceRecorder recorder_;
  ScheduleFollower follower_;
  StepPlan* plan_ = nullptr;  // plan of the open step's kind
  bool in_step_ = false;
  std::vector<PageId> destroyed_;
  LaneTotals copied_before_;  // totals when the step began
  Need need_;                 // need of the operator that runs
  Need neediest_;
  int64_t operators_ = 0;
};

}  // namespace spillway::swap
