#include "swap/conductor/schedule_follower.h"

#include <exception>
#include <utility>

namespace spillway::swap {

void ScheduleFollower::begin_step(const StepPlan& plan, bool follow) {
  plan_ = &plan;
  following_ = follow && plan.planned;
  matched_ = following_;
  slot_of_.clear();
  page_of_slot_.assign(plan.trace.slots.size(), 0);
  base_ = pager_.table().ticks();
  index_ = -1;
  next_page_in_ = 0;
  if (recipes_) recipes_->clear();
}

bool ScheduleFollower::end_step() {
  if (following_ && index_ + 1 != std::ssize(plan_->trace.operators)) leave_schedule();
  return plan_->planned && matched_ && following_;
}

void ScheduleFollower::abandon_step() noexcept {
  following_ = false;
}

void ScheduleFollower::begin_operator(const void* identity) {
  ++index_;
  if (!following_) return;
  const auto& operators = plan_->trace.operators;
  const size_t i = index_;
  if (i >= operators.size() || operators[i].identity != identity) leave_schedule();
}

void ScheduleFollower::set_place(PageId page, int32_t slot) {
  slot_of_[page] = slot;
  page_of_slot_[slot] = page;
}

void ScheduleFollower::meet(const Page& page) {
  if (!following_) return;
  if (auto planned = plan_->persistent.find(page.id); planned != plan_->persistent.end())
    set_place(page.id, planned->second);
}

void ScheduleFollower::match_birth(const Birth& birth, int64_t bytes) {
  if (!following_) return;
  for (int32_t planned : plan_->trace.operators[index_].births) {
    const Slot& expected = plan_->trace.slots[planned];
    if (expected.position != birth.position) continue;
    if (expected.bytes != bytes) return leave_schedule();
    return set_place(birth.page->id, planned);
  }
  matched_ = false;
}

void ScheduleFollower::forget(PageId page) {
  const auto known = slot_of_.find(page);
  if (known == slot_of_.end()) return;
  page_of_slot_[known->second] = 0;
  slot_of_.erase(known);
}

void ScheduleFollower::leave_schedule() {
  following_ = false;
  matched_ = false;
  ++deviations_;
  pager_.table().forget_next_uses(user_);
}

int64_t ScheduleFollower::absolute_next_use(int32_t slot) const {
  const int64_t next = next_use_after(plan_->trace, plan_->trace.slots[slot], index_);
  return next == kNextUseUnknown ? next : base_ + next;
}

int64_t ScheduleFollower::next_use_of(PageId page) const {
  const auto known = following_ ? slot_of_.find(page) : slot_of_.end();
  return known == slot_of_.end() ? kNextUseUnknown : absolute_next_use(known->second);
}

std::optional<int64_t> ScheduleFollower::expected_next_use(int32_t position) const {
  if (!following_) return std::nullopt;
  for (int32_t planned : plan_->trace.operators[index_].births)
    if (plan_->trace.slots[planned].position == position) return absolute_next_use(planned);
  return std::nullopt;
}

std::span<const int32_t> ScheduleFollower::recipes_here() const {
  if (!following_) return {};
  return plan_->recipes[index_];
}

void ScheduleFollower::issue_copies() {
  if (index_ >= 0) act_after_operator();
  const auto& page_ins = plan_->schedule.actions.page_ins;
  for (; next_page_in_ < page_ins.size(); ++next_page_in_) {
    const Actions::PageIn& in = page_ins[next_page_in_];
    if (in.trigger > index_) return;
    const PageId page = page_of_slot(in.slot);
    if (page && in.use > index_ && !pager_.prefetcher().try_page_in(page)) return;
  }
}

void ScheduleFollower::act_after_operator() {
  const Actions& actions = plan_->schedule.actions;
  const size_t i = index_;
  for (int32_t slot : plan_->discards_after[i])
    if (auto recipe = recipes_->take(slot); recipe && page_of_slot(slot))
      pager_.replayer().discard(page_of_slot(slot), std::move(recipe));
  for (int32_t slot : actions.page_outs_after[i])
    if (page_of_slot(slot)) pager_.prefetcher().start_page_out(page_of_slot(slot));
  for (int32_t slot : actions.releases_after[i])
    if (page_of_slot(slot)) pager_.table().evict_first(page_of_slot(slot));
  for (int32_t slot : plan_->replays_after[i])
    if (page_of_slot(slot)) replay_ahead(page_of_slot(slot));
}

/// Makes the page again ahead of its use, as a hint only: when that fails now, the page is made again when it is used.
void ScheduleFollower::replay_ahead(PageId page) {
  try {
    pager_.replayer().replay(page);
  } catch (const std::exception&) {
  }
}

}  // namespace spillway::swap
