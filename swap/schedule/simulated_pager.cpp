#include "swap/schedule/simulated_pager.h"

#include <algorithm>
#include <utility>

namespace spillway::swap {

SimulatedPager::SimulatedPager(const StepTrace& trace, const SimulationInputs& inputs, SimulatedTime& time,
                               Simulated& result)
    : trace_(trace),
      inputs_(inputs),
      order_(inputs.small_bytes, inputs.costly_bytes),
      time_(time),
      result_(result),
      memory_(inputs.budget_bytes),
      pages_(trace.slots.size()),
      resident_(trace.slots.size()) {
  for (size_t s = 0; s < trace.slots.size(); ++s)
    if (trace.slots[s].birth == kBeforeStep) add(s);
}

// --- uses -----------------------------------------------------------------------------------------------------------

void SimulatedPager::begin_step() {
  index_ = kNoOperator;
  resident_.for_each([&](int32_t slot) { set_next_use(slot); });
}

void SimulatedPager::lease(int32_t index) {
  index_ = index;
  is_leasing_ = true;
  may_evict_streamed_ = false;
  const OperatorRecord& op = trace_.operators[index];
  memory_.set_unpaged(op.unpaged_bytes);
  for (int32_t slot : op.touched) pages_[slot].leased_by = index;
  for (int32_t slot : op.streamed) pages_[slot].streamed_by = index;
  for (int32_t slot : op.touched) {
    const Slot& touched = slot_of(slot);
    if (pages_[slot].state == PageState::absent && touched.birth != index && memory_.fits(touched.bytes))
      page_in_on_demand(slot);
  }
  for (int32_t slot : op.touched) make_usable(slot);
  for (int32_t slot : op.touched)
    if (is_written(slot)) make_dirty(slot);
}

void SimulatedPager::make_usable(int32_t slot) {
  if (on_device(slot)) return;
  if (slot_of(slot).birth == index_) return add(slot);  // an argument that is first seen here
  if (pages_[slot].state != PageState::paging_in) {
    make_room(slot_of(slot).bytes);
    if (!result_.feasible) return;
    page_in_on_demand(slot);
  }
  finish_page_in(slot);
}

int64_t SimulatedPager::note_operator_bytes() {
  const int64_t bytes = memory_.used_bytes() + trace_.operators[index_].own_bytes;
  memory_.note_peak(bytes);
  return bytes;
}

void SimulatedPager::note_use(int32_t slot) {
  set_next_use(slot);
  pages_[slot].last_use = index_;
}

void SimulatedPager::set_next_use(int32_t slot) {
  pages_[slot].next_use = next_use_after(trace_, slot_of(slot), index_);
  pages_[slot].priority = EvictionPriority::by_use;
}

bool SimulatedPager::is_leased(const SimulatedPage& page) const {
  return is_leasing_ && (page.leased_by == index_ || (!may_evict_streamed_ && page.streamed_by == index_));
}

bool SimulatedPager::is_written(int32_t slot) const {
  const std::vector<int32_t>& writes = slot_of(slot).writes;
  return std::binary_search(writes.begin(), writes.end(), index_);
}

void SimulatedPager::add(int32_t slot) {
  SimulatedPage& page = pages_[slot];
  if (is_on_device(page.state)) return;
  // The operator that adds it keeps its lease.
  page = {.state = PageState::resident_dirty, .leased_by = page.leased_by, .streamed_by = page.streamed_by};
  memory_.charge(slot_of(slot).bytes);
  resident_.add(slot);
}

void SimulatedPager::destroy(int32_t slot) {
  SimulatedPage& page = pages_[slot];
  const int64_t bytes = slot_of(slot).bytes;
  const bool is_copied = page.state == PageState::paging_out || page.state == PageState::paging_in;
  if (is_copied && page.copy_end > time_.now())
    memory_.free_after(page.copy_end, bytes);
  else if (page.state != PageState::absent)
    memory_.free(bytes);
  resident_.remove(slot);
  page = {.leased_by = page.leased_by, .streamed_by = page.streamed_by, .was_copied_out = page.was_copied_out};
}

// --- copies ---------------------------------------------------------------------------------------------------------

/// True when the absence that the slot begins now, or that it is in, passes the disk.
bool SimulatedPager::passes_disk(int32_t slot) const {
  if (!inputs_.on_disk || inputs_.on_disk->empty()) return false;
  const int64_t use = next_use_after(trace_, slot_of(slot), is_leasing_ ? index_ - 1 : index_);
  return inputs_.on_disk->count({slot, static_cast<int32_t>(use % std::ssize(trace_.operators))}) > 0;
}

void SimulatedPager::page_out(int32_t slot) {
  SimulatedPage& page = pages_[slot];
  page.state = PageState::paging_out;
  page.copy_end = time_.copy_out(slot_of(slot).bytes, passes_disk(slot));
  page.was_copied_out = true;
  result_.bytes_out += slot_of(slot).bytes;
}

void SimulatedPager::page_in(int32_t slot) {
  SimulatedPage& page = pages_[slot];
  page.state = PageState::paging_in;
  memory_.charge(slot_of(slot).bytes);
  memory_.note_peak(memory_.used_bytes());  // it may have to leave again before the next operator
  page.copy_end = time_.copy_in(slot_of(slot).bytes, passes_disk(slot));
  result_.bytes_in += slot_of(slot).bytes;
}

void SimulatedPager::page_in_on_demand(int32_t slot) {
  result_.demanded.push_back({slot, index_ - 1, index_});
  page_in(slot);
}

void SimulatedPager::finish_page_in(int32_t slot) {
  SimulatedPage& page = pages_[slot];
  time_.wait_for_copy(page.copy_end);
  page.state = PageState::resident_clean;
  page.priority = EvictionPriority::by_use;
  resident_.add(slot);
}

bool SimulatedPager::prefetch(int32_t slot) {
  if (pages_[slot].state != PageState::absent) return true;
  memory_.free_completed(time_.now());
  const EvictionLimits limits{.used_after = next_use_after(trace_, slot_of(slot), index_), .clean_only = true};
  while (!memory_.fits(slot_of(slot).bytes)) {
    const int32_t victim = choose_victim(limits);
    if (victim == kNoSlot) return false;
    free_device_bytes(victim);
  }
  page_in(slot);
  return true;
}

/// Makes a slot's copy on the host stale, once that is complete.
void SimulatedPager::make_dirty(int32_t slot) {
  SimulatedPage& page = pages_[slot];
  if (!is_on_device(page.state)) return;
  if (page.state == PageState::paging_out) time_.wait_for_copy(page.copy_end);
  page.state = PageState::resident_dirty;
}

void SimulatedPager::poll_page_out(SimulatedPage& page) const {
  if (page.state == PageState::paging_out && page.copy_end <= time_.now()) page.state = PageState::resident_clean;
}

void SimulatedPager::stream(int32_t slot) {
  const bool is_birth = slot_of(slot).birth == index_;
  if (pages_[slot].state == PageState::paging_in) finish_page_in(slot);
  if (!on_device(slot) && make_room_to_stay(slot, is_birth)) {
    if (is_birth) return add(slot);
    page_in_on_demand(slot);
    finish_page_in(slot);
  }
  if (!on_device(slot))
    stream_windows(slot, is_birth);
  else if (is_written(slot))
    make_dirty(slot);
}

void SimulatedPager::stream_windows(int32_t slot, bool is_birth) {
  const int64_t bytes = slot_of(slot).bytes;
  if (!is_birth || !slot_of(slot).born_streamed) {
    time_.wait_for_copy(time_.copy_in(bytes, /*passes_disk=*/false));
    result_.bytes_in += bytes;
  }
  if (is_written(slot)) {
    time_.wait_for_copy(time_.copy_out(bytes, /*passes_disk=*/false));
    result_.bytes_out += bytes;
  }
}

// --- evictions ------------------------------------------------------------------------------------------------------

int32_t SimulatedPager::choose_victim(const EvictionLimits& limits, int32_t except) {
  VictimSearch<int32_t> search(order_, limits, kNoSlot);
  resident_.for_each([&](int32_t slot) {
    SimulatedPage& page = pages_[slot];
    if (slot == except || is_leased(page)) return;
    poll_page_out(page);
    search.consider(slot, {.charged_bytes = slot_of(slot).bytes,
                           .next_use = page.next_use,
                           .last_use = page.last_use,
                           .priority = page.priority,
                           .bias = inputs_.bias ? (*inputs_.bias)[slot] : EvictionBias::neutral,
                           .is_clean = page.state == PageState::resident_clean,
                           .is_paging_out = page.state == PageState::paging_out});
  });
  return search.victim();
}

// The loop of Evictor::make_room(), without the errors that real copies can have.
void SimulatedPager::make_room(int64_t bytes) {
  while (!memory_.fits(bytes)) {
    memory_.free_completed(time_.now());
    if (memory_.fits(bytes)) return;
    if (const int32_t victim = choose_victim({}); victim != kNoSlot) {
      evict_and_wait(victim, /*with_next=*/true);
      continue;
    }
    if (wait_for_any_copy()) continue;
    if (is_leasing_ && !std::exchange(may_evict_streamed_, true)) continue;
    result_.feasible = false;
    return;
  }
}

/// Makes room for a slot that could be streamed. Returns false where that would cost a slot that is used before it.
bool SimulatedPager::make_room_to_stay(int32_t slot, bool is_birth) {
  if (is_birth && !slot_of(slot).born_streamed) return true;  // an argument that is first seen here
  const bool is_fetched = inputs_.fetch_streamed && !is_birth;
  const int64_t next_use = is_fetched ? index_ + 1 : next_use_after(trace_, slot_of(slot), index_);
  if (next_use == kNextUseUnknown && !is_birth) return false;
  const int64_t bytes = slot_of(slot).bytes + trace_.operators[index_].own_bytes;
  while (!memory_.fits(bytes)) {
    memory_.free_completed(time_.now());
    if (memory_.fits(bytes)) break;
    const int32_t victim = choose_victim({.used_after = next_use});
    if (victim == kNoSlot) return false;
    evict_and_wait(victim, /*with_next=*/false);
  }
  return true;
}

/// Evicts a slot, and waits for the copy that this needs. One more slot begins to leave meanwhile `with_next`, so that
/// the next wait is shorter.
void SimulatedPager::evict_and_wait(int32_t victim, bool with_next) {
  if (is_dirty(victim)) page_out(victim);
  if (pages_[victim].state == PageState::paging_out) {
    if (with_next && time_.copies_take_time()) {
      const int32_t next = choose_victim({}, /*except=*/victim);
      if (next != kNoSlot && is_dirty(next)) page_out(next);
    }
    time_.wait_for_copy(pages_[victim].copy_end);
  }
  free_device_bytes(victim);
}

void SimulatedPager::evict(int32_t slot) {
  if (!on_device(slot)) return;
  if (pages_[slot].state != PageState::resident_clean) page_out(slot);
  free_device_bytes(slot);
}

void SimulatedPager::free_device_bytes(int32_t slot) {
  SimulatedPage& page = pages_[slot];
  result_.evictions.push_back({.slot = slot,
                               .at = std::max(index_, 0),
                               .back_at = next_use_after(trace_, slot_of(slot), index_),
                               .copied = std::exchange(page.was_copied_out, false)});
  page.state = PageState::absent;
  memory_.free(slot_of(slot).bytes);
  resident_.remove(slot);
}

/// Waits for a copy that frees bytes, or for a slot that was fetched too early and can then leave again. Returns false
/// when there is none.
bool SimulatedPager::wait_for_any_copy() {
  if (const auto copy_end = memory_.pending_free()) {
    time_.wait_for_copy(*copy_end);
    return true;
  }
  for (size_t slot = 0; slot < pages_.size(); ++slot)
    if (pages_[slot].state == PageState::paging_in && !is_leased(pages_[slot])) {
      finish_page_in(slot);
      return true;
    }
  return false;
}

}  // namespace spillway::swap
