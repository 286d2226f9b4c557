/// The pager of a simulated step: the places of the slots' bytes, and the copies and evictions that change them.
#pragma once
#include <cstdint>
#include <vector>

#include "swap/pager/eviction_order.h"
#include "swap/pager/page_state.h"
#include "swap/schedule/simulated_memory.h"
#include "swap/schedule/simulated_time.h"
#include "swap/schedule/simulation.h"
#include "swap/schedule/step_trace.h"

namespace spillway::swap {

/// Moves the slots of a trace as Pager moves pages, by the same EvictionOrder. Copies take simulated time.
class SimulatedPager {
 public:
  /// The slots that were born before the step are resident. The pager moves `time` on, and counts in `result`.
  SimulatedPager(const StepTrace& trace, const SimulationInputs& inputs, SimulatedTime& time, Simulated& result);

  const SimulatedMemory& memory() const noexcept { return memory_; }
  bool on_device(int32_t slot) const { return is_on_device(pages_[slot].state); }
  bool is_dirty(int32_t slot) const { return pages_[slot].state == PageState::resident_dirty; }

  /// Begins a step: next uses are those from before its first operator on.
  void begin_step();
  /// Leases the slots that an operator touches, so that they are resident and stay so until unlease(). Its streamed
  /// slots stay unless nothing else can be evicted. Where there is no room the result is not feasible.
  void lease(int32_t index);
  /// Evicts slots until so many bytes fit. Where that cannot be, the result is not feasible.
  void make_room(int64_t bytes);
  /// Uses a slot window by window. The slot comes in, or is born resident, where room for it costs no slot that is used
  /// before it is used again. Otherwise its windows pass over the link while the operator waits.
  void stream(int32_t slot);
  /// Notes the bytes that are held while the leasing operator runs, and returns them.
  int64_t note_operator_bytes();
  /// Ends the leases. Evictions are for the next operator from then on.
  void unlease() noexcept { is_leasing_ = false; }
  void move_to_next_operator() noexcept { ++index_; }

  /// Makes a slot resident that is nowhere yet.
  void add(int32_t slot);
  /// Frees a slot. The bytes stay while a copy uses them.
  void destroy(int32_t slot);
  /// Notes that the leasing operator used a slot.
  void note_use(int32_t slot);
  void set_priority(int32_t slot, EvictionPriority priority) { pages_[slot].priority = priority; }
  void page_out(int32_t slot);
  /// Evicts a slot without waiting for its copy.
  void evict(int32_t slot);
  /// Begins to page in an absent slot where clean slots that are used later make room. Returns false where they do not.
  bool prefetch(int32_t slot);

 private:
  static constexpr int32_t kNoSlot = -1;
  static constexpr int32_t kNoOperator = -1;

  /// The place of one slot's bytes, and its users.
  struct SimulatedPage {
    PageState state = PageState::absent;  ///< absent also before its birth and after its death
    double copy_end = 0;                  ///< end of the page-out or page-in that began last
    EvictionPriority priority = EvictionPriority::by_use;
    int64_t next_use = kNextUseUnknown;
    int32_t last_use = kNoOperator;
    int32_t leased_by = kNoOperator;    ///< the last operator that leased it
    int32_t streamed_by = kNoOperator;  ///< the last operator that used it window by window
    bool was_copied_out = false;        ///< since it came
  };

  const Slot& slot_of(int32_t slot) const { return trace_.slots[slot]; }
  bool is_leased(const SimulatedPage& page) const;
  bool is_written(int32_t slot) const;
  bool passes_disk(int32_t slot) const;
  void set_next_use(int32_t slot);
  void page_in(int32_t slot);
  void page_in_on_demand(int32_t slot);
  void finish_page_in(int32_t slot);
  void make_usable(int32_t slot);
  void make_dirty(int32_t slot);
  void poll_page_out(SimulatedPage& page) const;
  int32_t choose_victim(const EvictionLimits& limits, int32_t except = kNoSlot);
  void evict_and_wait(int32_t victim, bool with_next);
  void free_device_bytes(int32_t slot);
  bool wait_for_any_copy();
  bool make_room_to_stay(int32_t slot, bool is_birth);
  void stream_windows(int32_t slot, bool is_birth);

  const StepTrace& trace_;
  const SimulationInputs& inputs_;
  const EvictionOrder order_;
  SimulatedTime& time_;
  Simulated& result_;
  SimulatedMemory memory_;
  std::vector<SimulatedPage> pages_;  ///< by slot
  ResidentSlots resident_;
  int32_t index_ = kNoOperator;      ///< the operator that leases, or that evictions are for
  bool is_leasing_ = false;          ///< its slots stay
  bool may_evict_streamed_ = false;  ///< except those that it streams, because nothing else can go
};

}  // namespace spillway::swap
