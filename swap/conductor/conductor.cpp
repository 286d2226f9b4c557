#include "swap/conductor/conductor.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "core/error.h"

namespace spillway {

namespace {

using Clock = std::chrono::steady_clock;

/// Steps whose measured times are still worth a new plan: the first ran on demand and cold, the second cold in part.
constexpr int32_t kPlans = 3;

}  // namespace

Conductor::Conductor(Pager& pager, ScheduleInputs inputs, bool follow_schedules, UserId user, RecipeBook* recipes)
    : pager_(pager), inputs_(inputs), follow_schedules_(follow_schedules), user_(user), recipes_(recipes) {
  inputs_.replay = inputs_.replay && recipes_;
  inputs_.small_bytes = DeviceMemory::charge_of(pager.small_bytes());
}

void Conductor::begin_step(std::string_view kind) {
  if (in_step_) throw std::logic_error("[session.step] a step is open; steps do not nest");
  auto found = kinds_.find(kind);
  kind_ = &(found != kinds_.end() ? found : kinds_.try_emplace(std::string(kind)).first)->second;
  in_step_ = true;
  following_ = follow_schedules_ && kind_->planned;
  matched_ = following_;
  recording_ = {};
  recording_.kind = kind;
  tags_.clear();
  index_ = -1;
  base_ = pager_.ticks();
  next_page_in_ = 0;
  live_.assign(kind_->trace.slots.size(), 0);
  pager_.note_ends(user_);
  adopt_existing_pages();
  if (recipes_) recipes_->clear();
  copied_before_ = pager_.copied();
  if (following_) act();
  delayed_ = pager_.delayed_seconds();
  last_end_ = Clock::now();
}

void Conductor::end_step(std::span<const OperatorClock::Times> measured) {
  note_ended();
  recording_.tail_seconds = std::max(0.0, seconds_since_last_operator());
  if (measured.size() == recording_.operators.size()) set_times(measured);
  pager_.stop_noting_ends(user_);
  in_step_ = false;
  if (following_ && index_ + 1 != static_cast<int32_t>(kind_->trace.operators.size())) deviate();
  const bool as_planned = kind_->planned && matched_ && following_;
  keep_times(as_planned);
  if (as_planned && kind_->times_planned >= kPlans && kind_->users == pager_.users()) return refresh_prediction();
  plan(as_planned ? std::move(kind_->trace) : std::move(recording_));
}

/// A step that did as planned says how long its operators take when pages come and go as planned; another one is all
/// that is known of what the next ones will do.
void Conductor::keep_times(bool as_planned) {
  Kind& kind = *kind_;
  const LaneTotals lanes = pager_.copied().since(copied_before_);
  take_out_slowdown(recording_, lanes.out.seconds + lanes.in.seconds);
  if (!as_planned) {
    kind.times = {};
    kind.times_planned = 0;
  } else if (kind.times_planned == 1) {
    kind.times.forget_latest();  // it ran on demand
  }
  kind.times.note(recording_, lanes);
  inputs_.rates = kind.times.rates(inputs_.rates);
  kind.times.apply_to(as_planned ? kind.trace : recording_);
}

/// Costs one simulation, so in the end only as often as all of the latest steps are others.
void Conductor::refresh_prediction() {
  constexpr auto kLatest = static_cast<int64_t>(StepTimes::kLatest);
  Kind& kind = *kind_;
  const int64_t steps = ++kind.steps_since_plan;
  if (steps <= kLatest || steps % kLatest == 0) predict_again(kind.schedule, kind.trace, inputs_of(kind));
}

/// Users of the pager plan for an equal share of the budget each, if their steps can run in that.
ScheduleInputs Conductor::inputs_of(const Kind& kind) const {
  ScheduleInputs inputs = inputs_;
  if (const int64_t budget = inputs.budget_bytes; budget != kUnlimitedBytes && kind.users > 1)
    inputs.budget_bytes = std::max(budget / kind.users, std::min(budget, kind.trace.floor_bytes()));
  if (pager_.device().ledger().is_soft()) inputs.budget_bytes = std::max(inputs.budget_bytes, kind.trace.floor_bytes());
  if (inputs.host_budget_bytes != kUnlimitedBytes) inputs.host_budget_bytes /= std::max<int64_t>(1, kind.users);
  return inputs;
}

/// The schedule of the kind, from now on.
void Conductor::plan(StepTrace trace) {
  Kind& kind = *kind_;
  kind.trace = std::move(trace);
  kind.users = pager_.users();
  kind.schedule = make_schedule(kind.trace, inputs_of(kind));
  kind.steps_since_plan = 0;
  kind.planned = true;
  ++kind.times_planned;
  if (kind.times_planned == 1) {
    kind.lasting.clear();
    for (size_t s = 0; s < kind.trace.slots.size(); ++s)
      if (const Slot& slot = kind.trace.slots[s]; slot.death == kOutlivesStep)
        kind.lasting[slot.page] = static_cast<int32_t>(s);
  }
  const size_t count = kind.trace.operators.size();
  for (auto* by_operator : {&kind.recipes, &kind.discards_after, &kind.replays_after}) by_operator->assign(count, {});
  for (const Replay& replay : kind.schedule.replays) {
    for (int32_t i : replay.operators) kind.recipes[static_cast<size_t>(i)].push_back(replay.slot);
    kind.discards_after[static_cast<size_t>(replay.discard_after)].push_back(replay.slot);
    if (replay.before < replay.use) kind.replays_after[static_cast<size_t>(replay.before) - 1].push_back(replay.slot);
  }
}

/// Without the waits for copies and the replays in it.
double Conductor::seconds_since_last_operator() const {
  const std::chrono::duration<double> since = Clock::now() - last_end_;
  return since.count() - (pager_.delayed_seconds() - delayed_);
}

/// The device's times: the host was ahead of it, and waited at the end.
void Conductor::set_times(std::span<const OperatorClock::Times> measured) {
  for (size_t i = 0; i < measured.size(); ++i) {
    recording_.operators[i].seconds = measured[i].seconds;
    recording_.operators[i].host_seconds = measured[i].gap_seconds;
  }
  if (!measured.empty()) recording_.tail_seconds = 0;
}

/// Operators ran beside copies, which slowed them; the simulation adds that again for the copies of its schedule.
void Conductor::take_out_slowdown(StepTrace& trace, double copying_seconds) const {
  double kernels = 0;
  for (const OperatorRecord& op : trace.operators) kernels += op.seconds;
  if (kernels <= 0) return;
  const double share = std::max(0.5, 1 - inputs_.rates.compute_slowdown * copying_seconds / kernels);
  for (OperatorRecord& op : trace.operators) op.seconds *= share;
}

void Conductor::abandon_step() noexcept {
  in_step_ = false;
  following_ = false;
  pager_.stop_noting_ends(user_);
  pager_.forget_next_uses(user_);
}

void Conductor::begin_operator(const OperatorCall& call, std::span<PageUse> uses, std::span<PageUse> streamed,
                               std::span<const Birth> new_arguments) {
  need_ = {call.name, 0, 0, pager_.device().ledger().used_bytes() - pager_.paged_bytes()};
  if (!in_step_) return count_leased(uses);
  note_ended();
  ++index_;
  ++operators_;
  pager_.tick();
  if (following_ && (static_cast<size_t>(index_) >= kind_->trace.operators.size() ||
                     kind_->trace.operators[static_cast<size_t>(index_)].identity != call.identity))
    deviate();
  OperatorRecord& op = recording_.operators.emplace_back();
  op.identity = call.identity;
  op.name = call.name;
  op.replayable = call.replayable;
  op.host_seconds = std::max(0.0, seconds_since_last_operator());
  op.unpaged_bytes = need_.unpaged_bytes;
  for (const Birth& birth : new_arguments) {
    op.births.push_back(new_slot(*birth.page, index_, /*as_output=*/false));
    match_birth(birth, op.births.back());
  }
  for (PageUse& use : uses) note_use(use, op.touched);
  for (int32_t slot : op.touched) op.leased_bytes += recording_.slots[static_cast<size_t>(slot)].bytes;
  need_.leased_bytes = op.leased_bytes;
  for (PageUse& use : streamed) note_use(use, op.streamed);
}

/// Adds the use to its slot, and the slot to those of the operator that runs.
void Conductor::note_use(PageUse& use, std::vector<int32_t>& slots) {
  const Tag tag = tag_of(*use.page);
  Slot& slot = recording_.slots[static_cast<size_t>(tag.trace_slot)];
  if (slot.uses.empty() || slot.uses.back() != index_) {
    slots.push_back(tag.trace_slot);
    slot.uses.push_back(index_);
  }
  // Managed memory has one copy of its bytes: they leave after a use as if that had written them.
  const bool moves = use.page->block && use.page->block->stays;
  if ((use.write || moves) && (slot.writes.empty() || slot.writes.back() != index_)) slot.writes.push_back(index_);
  use.next_use = following_ && tag.plan_slot >= 0 ? absolute_next_use(tag.plan_slot) : kNextUseUnknown;
}

std::optional<int64_t> Conductor::expected_next_use(int32_t position) const {
  if (!following()) return std::nullopt;
  for (int32_t planned : kind_->trace.operators[static_cast<size_t>(index_)].births)
    if (kind_->trace.slots[static_cast<size_t>(planned)].position == position) return absolute_next_use(planned);
  return std::nullopt;
}

/// Each page once.
void Conductor::count_leased(std::span<const PageUse> uses) {
  for (size_t i = 0; i < uses.size(); ++i) {
    const bool again = std::any_of(uses.begin(), uses.begin() + static_cast<std::ptrdiff_t>(i),
                                   [&](const PageUse& use) { return use.page == uses[i].page; });
    if (!again) need_.leased_bytes += DeviceMemory::charge_of(uses[i].page->bytes);
  }
}

void Conductor::end_operator(double seconds, int64_t own_bytes, std::span<const Birth> new_outputs) {
  need_.own_bytes = own_bytes;
  if (need_.bytes() > neediest_.bytes()) neediest_ = need_;
  if (!in_step_) return;
  OperatorRecord& op = recording_.operators.back();
  op.seconds = seconds;
  op.own_bytes = own_bytes;
  for (const Birth& birth : new_outputs) {
    int32_t slot = new_slot(*birth.page, index_, /*as_output=*/!birth.streamed);
    op.births.push_back(slot);
    recording_.slots[static_cast<size_t>(slot)].born_streamed = birth.streamed;
    if (birth.streamed) op.streamed.push_back(slot);
    recording_.slots[static_cast<size_t>(slot)].uses.push_back(index_);
    recording_.slots[static_cast<size_t>(slot)].writes.push_back(index_);
    match_birth(birth, slot);
    if (const Tag tag = tag_of(*birth.page); following_ && tag.plan_slot >= 0)
      pager_.set_next_use(*birth.page, absolute_next_use(tag.plan_slot));
  }
  delayed_ = pager_.delayed_seconds();
  last_end_ = Clock::now();
}

std::span<const int32_t> Conductor::recipes_here() const {
  if (!in_step_ || !following_) return {};
  return kind_->recipes[static_cast<size_t>(index_)];
}

void Conductor::act() {
  if (!in_step_) return;
  if (!following_) return pager_.work_ahead_of_demand();
  note_ended();
  const Actions& actions = kind_->schedule.actions;
  auto live = [&](int32_t slot) { return live_[static_cast<size_t>(slot)]; };
  if (index_ >= 0) {
    const auto i = static_cast<size_t>(index_);
    for (int32_t slot : kind_->discards_after[i])
      if (auto recipe = recipes_->take(slot); recipe && live(slot)) pager_.discard(live(slot), std::move(recipe));
    for (int32_t slot : actions.page_outs_after[i])
      if (live(slot)) pager_.start_page_out(live(slot));
    for (int32_t slot : actions.releases_after[i])
      if (live(slot)) pager_.release(live(slot));
    for (int32_t slot : kind_->replays_after[i])
      if (live(slot)) replay_ahead(live(slot));
  }
  for (; next_page_in_ < actions.page_ins.size(); ++next_page_in_) {
    const Actions::PageIn& in = actions.page_ins[next_page_in_];
    if (in.trigger > index_) return;
    if (live(in.slot) && in.use > index_ && !pager_.try_prefetch(live(in.slot))) return;
  }
}

/// Only a hint: what cannot be made again now is made again when it is used, by whoever needs it.
void Conductor::replay_ahead(PageId page) {
  try {
    pager_.replay(page);
  } catch (const std::exception&) {
  }
}

const StepTrace* Conductor::trace(std::string_view kind) const {
  auto found = kinds_.find(kind);
  return found == kinds_.end() || !found->second.planned ? nullptr : &found->second.trace;
}

const Schedule* Conductor::schedule(std::string_view kind) const {
  auto found = kinds_.find(kind);
  return found == kinds_.end() || !found->second.planned ? nullptr : &found->second.schedule;
}

std::vector<const StepTrace*> Conductor::traces() const {
  std::vector<const StepTrace*> all;
  for (const auto& [name, kind] : kinds_)
    if (kind.planned) all.push_back(&kind.trace);
  return all;
}

/// Its pages that exist already become slots born before the step, and take up their place in the schedule.
void Conductor::adopt_existing_pages() {
  pager_.for_each_of(user_, [&](Page& page) {
    const Tag& tag = tag_of(page);
    page.next_use = tag.plan_slot >= 0 ? absolute_next_use(tag.plan_slot) : kNextUseUnknown;
    page.released = false;
  });
}

/// A page that the step has not met existed before it (another Session or thread may have used it last).
Conductor::Tag& Conductor::tag_of(Page& page) {
  if (auto known = tags_.find(page.id); known != tags_.end()) return known->second;
  new_slot(page, kBeforeStep, false);
  Tag& tag = tags_[page.id];
  if (auto planned = kind_->lasting.find(page.id); following_ && planned != kind_->lasting.end()) {
    tag.plan_slot = planned->second;
    live_[static_cast<size_t>(tag.plan_slot)] = page.id;
  }
  return tag;
}

int32_t Conductor::new_slot(Page& page, int32_t birth, bool as_output) {
  const auto trace_slot = static_cast<int32_t>(recording_.slots.size());
  tags_[page.id] = {trace_slot, -1};
  Slot& slot = recording_.slots.emplace_back();
  slot.bytes = DeviceMemory::charge_of(page.bytes);
  slot.category = page.category;
  slot.birth = birth;
  slot.born_as_output = as_output;
  slot.page = page.id;
  return trace_slot;
}

/// Finds the birth's slot in the schedule: same operator, same position, same size.
void Conductor::match_birth(const Birth& birth, int32_t slot) {
  recording_.slots[static_cast<size_t>(slot)].position = birth.position;
  if (!following_) return;
  for (int32_t planned : kind_->trace.operators[static_cast<size_t>(index_)].births) {
    const Slot& expected = kind_->trace.slots[static_cast<size_t>(planned)];
    if (expected.position != birth.position) continue;
    if (expected.bytes != recording_.slots[static_cast<size_t>(slot)].bytes) return deviate();
    tags_[birth.page->id].plan_slot = planned;
    live_[static_cast<size_t>(planned)] = birth.page->id;
    return;
  }
  matched_ = false;
}

int64_t Conductor::absolute_next_use(int32_t plan_slot) const {
  int64_t next = next_use_after(kind_->trace, kind_->trace.slots[static_cast<size_t>(plan_slot)], index_);
  return next == kNextUseUnknown ? next : base_ + next;
}

void Conductor::note_ended() {
  ended_.clear();
  pager_.take_ended(user_, ended_);
  for (PageId id : ended_) {
    auto tag = tags_.find(id);
    if (tag == tags_.end()) continue;  // another Session's
    recording_.slots[static_cast<size_t>(tag->second.trace_slot)].death = std::max(index_, 0);
    if (tag->second.plan_slot >= 0) live_[static_cast<size_t>(tag->second.plan_slot)] = 0;
    tags_.erase(tag);
  }
}

void Conductor::deviate() {
  following_ = false;
  matched_ = false;
  ++deviations_;
  pager_.forget_next_uses(user_);
}

}  // namespace spillway
