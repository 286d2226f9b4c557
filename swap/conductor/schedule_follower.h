/// Carries out on the pager what the schedule of a kind of step says.
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
#include "swap/pager/recipe_source.h"

namespace spillway {

/// Knows which pages of the open step are the schedule's slots, as long as the step does what the schedule expects;
/// when it does something else (another operator, another size) the rest of the step goes by demand. Used by one
/// thread.
class ScheduleFollower {
 public:
  /// `recipes` may be null: then nothing is replayed.
  ScheduleFollower(Pager& pager, UserId user, RecipeSource* recipes) : pager_(pager), user_(user), recipes_(recipes) {}

  /// `plan` outlives the step.
  void begin_step(const StepPlan& plan, bool follow);
  /// Returns whether the step did as planned, from its beginning to its end.
  bool end_step();
  void abandon_step() noexcept;
  bool following() const noexcept { return following_; }

  /// The next operator runs.
  void begin_operator(const void* identity);
  /// Finds the place of a page that existed before the step.
  void meet(const Page& page);
  /// Finds the place of a new storage of these bytes: same operator, same position, same size.
  void match_birth(const Birth& birth, int64_t bytes);
  void forget(PageId page);

  /// Whether the page is a slot of the schedule that is followed.
  bool has_place(PageId page) const { return following_ && slot_of_.contains(page); }
  /// When the page is used next, on the clock of next uses; kNextUseUnknown where no schedule knows.
  int64_t next_use_of(PageId page) const;
  /// When the output at `position` of the operator that runs is used next; nothing where there is no schedule to ask.
  std::optional<int64_t> expected_next_use(int32_t position) const;
  /// The slots whose recipes this operator's call belongs to.
  std::span<const int32_t> recipes_here() const;
  /// The page that is this slot now; 0 when there is none.
  PageId page_of_slot(int32_t slot) const { return page_of_slot_[static_cast<size_t>(slot)]; }

  /// Starts the page-outs, prefetches and replays that hang on this operator.
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
  bool matched_ = true;                          // every storage of the step was the schedule's
  std::unordered_map<PageId, int32_t> slot_of_;  // of the schedule
  std::vector<PageId> page_of_slot_;
  int64_t base_ = 0;    // the clock before the step: next uses count on over steps
  int32_t index_ = -1;  // operator that runs, or ran last
  size_t next_page_in_ = 0;
  int64_t deviations_ = 0;
};

}  // namespace spillway
