#include "swap/conductor/conductor.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace spillway::swap {
namespace {

ScheduleInputs inputs_for(const Pager& pager, ScheduleInputs inputs, const RecipeSource* recipes) {
  inputs.replay = inputs.replay && recipes;
  inputs.small_bytes = DeviceMemory::charge_of(pager.small_bytes());
  inputs.costly_bytes = costly_bytes(pager.device(), pager.small_bytes());
  return inputs;
}

}  // namespace

Conductor::Conductor(Pager& pager, ScheduleInputs inputs, bool follow_schedules, UserId user, RecipeSource* recipes)
    : pager_(pager),
      follow_schedules_(follow_schedules),
      user_(user),
      planner_(pager, inputs_for(pager, inputs, recipes)),
      recorder_(pager),
      follower_(pager, user, recipes) {}

// --- steps ----------------------------------------------------------------------------------------------------------

void Conductor::begin_step(std::string_view kind) {
  if (in_step_) throw std::logic_error("[session.step] a step is open; steps do not nest");
  plan_ = &planner_.plan_of(kind);
  in_step_ = true;
  recorder_.begin_step(kind);
  follower_.begin_step(*plan_, follow_schedules_);
  pager_.table().watch_destroyed(user_);
  adopt_existing_pages();
  copied_before_ = pager_.copied();
  if (follower_.following()) issue_copies();
  recorder_.start_clock();
}

/// Makes slots of the Session's pages that exist already, born before the step, and finds their places in the schedule.
void Conductor::adopt_existing_pages() {
  pager_.table().for_each_of(user_, [&](Page& page) {
    if (page.priority == EvictionPriority::last_resort) return;  // no operator has used it yet
    recorder_.find_or_add(page);
    follower_.meet(page);
    page.use.next_use = follower_.next_use_of(page.id);
    page.priority = EvictionPriority::by_use;
  });
}

void Conductor::end_step(std::span<const ComputeClock::Times> measured, bool is_timed) {
  record_destroyed();
  StepTrace recorded = recorder_.end_step(measured);
  pager_.table().stop_watching(user_);
  in_step_ = false;
  const bool as_planned = follower_.end_step();
  const LaneTotals lanes = pager_.copied().since(copied_before_);
  planner_.learn(*plan_, std::move(recorded), {.as_planned = as_planned, .is_timed = is_timed, .lanes = lanes});
}

void Conductor::abandon_step() noexcept {
  in_step_ = false;
  follower_.abandon_step();
  pager_.table().stop_watching(user_);
  pager_.table().forget_next_uses(user_);
}

void Conductor::record_destroyed() {
  destroyed_.clear();
  pager_.table().take_destroyed(user_, destroyed_);
  for (PageId id : destroyed_)
    if (recorder_.end_page(id)) follower_.forget(id);  // else it is another Session's page
}

// --- operators ------------------------------------------------------------------------------------------------------

void Conductor::begin_operator(const OperatorCall& call, std::span<PageUse> uses, std::span<PageUse> streamed,
                               std::span<const Birth> new_arguments) {
  need_ = {call.name, 0, 0, pager_.device().ledger().used_bytes() - pager_.paged_bytes()};
  if (!in_step_) return count_leased(uses);
  record_destroyed();
  ++operators_;
  pager_.table().tick();
  follower_.begin_operator(call.identity);
  recorder_.begin_operator(call, need_.unpaged_bytes);
  for (const Birth& birth : new_arguments)
    follower_.match_birth(birth, recorder_.slot(recorder_.add_argument(birth)).bytes);
  for (PageUse& use : uses) record_use(use, /*streamed=*/false);
  need_.leased_bytes = recorder_.leased_bytes();
  for (PageUse& use : streamed) record_use(use, /*streamed=*/true);
}

void Conductor::record_use(PageUse& use, bool streamed) {
  const bool is_new = recorder_.add_use(use, streamed);
  if (is_new) follower_.meet(*use.page);
  use.next_use = follower_.next_use_of(use.page->id);
}

/// Counts each page once.
void Conductor::count_leased(std::span<const PageUse> uses) {
  for (size_t i = 0; i < uses.size(); ++i) {
    const bool again =
        std::any_of(uses.begin(), uses.begin() + i, [&](const PageUse& use) { return use.page == uses[i].page; });
    if (!again) need_.leased_bytes += DeviceMemory::charge_of(uses[i].page->bytes);
  }
}

void Conductor::end_operator(double seconds, int64_t own_bytes, std::span<const Birth> new_outputs) {
  need_.own_bytes = own_bytes;
  if (need_.bytes() > neediest_.bytes()) neediest_ = need_;
  if (!in_step_) return;
  recorder_.end_operator(seconds, own_bytes);
  for (const Birth& birth : new_outputs) {
    follower_.match_birth(birth, recorder_.slot(recorder_.add_output(birth)).bytes);
    if (follower_.has_place(birth.page->id))
      pager_.table().set_next_use(*birth.page, follower_.next_use_of(birth.page->id));
  }
  recorder_.start_clock();
}

std::optional<int64_t> Conductor::expected_next_use(int32_t position) const {
  return in_step_ ? follower_.expected_next_use(position) : std::nullopt;
}

std::span<const int32_t> Conductor::recipes_here() const {
  if (!in_step_) return {};
  return follower_.recipes_here();
}

void Conductor::issue_copies() {
  if (!in_step_) return;
  if (!follower_.following()) return pager_.prefetcher().work_without_schedule();
  record_destroyed();
  follower_.issue_copies();
}

// --- traces and schedules --------------------------------------------------------------------------------------------

const StepTrace* Conductor::trace(std::string_view kind) const {
  const StepPlan* plan = planner_.find(kind);
  return plan ? &plan->trace : nullptr;
}

const Schedule* Conductor::schedule(std::string_view kind) const {
  const StepPlan* plan = planner_.find(kind);
  return plan ? &plan->schedule : nullptr;
}

}  // namespace spillway::swap
