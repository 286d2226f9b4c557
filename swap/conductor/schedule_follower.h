/// The follower, which carries out the schedule of a kind of step on the pager.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "swap/conductor/step_planner.h"
#include "swap/conductor/trace_recorder.h"
#include "swap/pager/pager.h"
#include "swap/pager/replay_recipe.h"

namespace spillway::swap {

/// Knows which pages of the open step are the schedule's slots, as long as the step does the operators that the
/// schedule expects. When it does something else (another operator, another size), the rest of the step goes by demand.
/// Used by one thread.
class ScheduleFollower {
 public:
  /// Makes a follower. `recipes` may be null: then nothing is replayed.
  ScheduleFollower(Pager& pager, UserId user, RecipeSource* recipes) : pager_(pager), user_(user), recipes_(recipes) {}

  /// Begins a step. `plan` outlives the step.
  void begin_step(const StepPlan& plan, bool follow);
  /// Ends the step. Returns true when it did as planned, from its beginning to its end.
  bool end_step();
  void abandon_step() noexcept;
  bool following() const noexcept { return following_; }

  /// Notes that the next operator runs.
  void begin_operator(const void* identity);
  /// Finds the place of a page that existed before the step.
  void meet(const Page& page);
  /// Finds the place of a new storage of these bytes: by operator, position and size.
  void match_birth(const Birth& birth, int64_t bytes);
  void forget(PageId page);

  /// True when the page is a slot of the schedule that is followed.
  bool has_place(PageId page) const { return following_ && slot_of_.contains(page); }
  /// Returns when the page is used next, on the clock of next uses; kNextUseUnknown where no schedule knows.
  int64_t next_use_of(PageId page) const;
  /// Returns when the output at `position` of the operator that runs is used next; nothing where there is no schedule
  /// to ask.
  std::optional<int64_t> expected_next_use(int32_t position) const;
  /// Returns the slots whose recipes this operator's call belongs to.
  std::span<const int32_t> recipes_here() const;
  /// Returns the page that is this slot now; 0 when there is none.
  PageId page_of_slot(int32_t slot) const { return page_of_slot_[slot]; }

  /// Starts the page-outs, prefetches and replays that the schedule ties to this operator.
  void issue_copies();

  int64_t deviations() const noexcept { return deviations_; }

 private:
  void leave_schedule();
  int64_t absolute_next_use(int32_t slot) const;
  void set_place(PageId page, int32_t slot);
  void act_after_operator();
  void replay_ahead(PageId page);

  Pager& pager_;
  const UserId user_;
  RecipeSource* const recipes_;
  const StepPlan* plan_ = nullptr;
  bool following_ = false;
  bool matched_ = true;                          // every storage of the step was one of the schedule's
  std::unordered_map<PageId, int32_t> slot_of_;  // slots of the schedule
  std::vector<PageId> page_of_slot_;
  int64_t base_ = 0;    // the clock before the step: next uses count on over steps
  int32_t index_ = -1;  // operator that runs, or ran last
  size_t next_page_in_ = 0;
  int64_t deviations_ = 0;
};

}  // namespace spillway::swap
