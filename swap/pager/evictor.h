/// The evictor, which makes room on the device: which pages leave for others, and how.
#pragma once
#include <cstdint>
#include <exception>
#include <span>
#include <unordered_set>

#include "core/memory/device_memory.h"
#include "swap/pager/eviction_order.h"
#include "swap/pager/page_transfer.h"

namespace spillway::swap {

/// Returns the charge below which a page's copies cost more than its bytes (EvictionOrder): 0 on the host.
inline int64_t costly_bytes(const DeviceMemory& device, int64_t small_bytes) {
  return device.is_host() ? 0 : DeviceMemory::charge_of(small_bytes);
}

/// Evicts in EvictionOrder. It passes over a page that cannot be evicted because the host tier is full, or because its
/// copy fails. From then on clean pages leave first, and the first error is thrown when no page is left that can leave.
/// Called under the lock.
class Evictor {
 public:
  /// Makes an evictor for which pages below `small_bytes` are small (EvictionOrder), and costly to copy on a GPU.
  Evictor(PageTable& table, PageTransfer& transfer, DeviceMemory& device, int64_t small_bytes)
      : table_(table),
        transfer_(transfer),
        device_(device),
        order_(DeviceMemory::charge_of(small_bytes), costly_bytes(device, small_bytes)) {}
  Evictor(const Evictor&) = delete;
  Evictor& operator=(const Evictor&) = delete;

  bool fits(int64_t charge) const { return charge <= device_.ledger().available_bytes(); }
  /// Makes room for a charge. Throws OutOfBudget, or the first error of a copy out.
  void make_room(PagerLock& lock, int64_t charge);
  /// Makes room for a charge by evicting pages that are next used after `used_after`, except those in `keep`. Returns
  /// true when there is room.
  bool try_make_room(PagerLock& lock, int64_t charge, int64_t used_after, std::span<const PageUse> keep);
  /// Frees clean pages that are next used after `used_after` until there is room. Returns false when there are not
  /// enough.
  bool drop_clean(PagerLock& lock, int64_t charge, int64_t used_after);
  /// Evicts pages of at least `bytes` together, or all that can leave, because the device has less memory than the
  /// budget allows. Returns true when some left. Throws the first page's error when none could leave.
  bool free_physical_memory(PagerLock& lock, int64_t bytes);
  /// Evicts all pages that are not leased, but those of last resort. Throws the first error at the end.
  void evict_all(PagerLock& lock);
  /// Does one round towards the page's absence. Throws its copy's error.
  void evict(PagerLock& lock, Page& page);
  /// Frees the bytes of a page that becomes absent, or discarded. Returns false when the owner dies on another thread,
  /// which waits for the lock to report that.
  bool free_device_bytes(PagerLock& lock, Page& page, PageState then = PageState::absent);

 private:
  /// Pages whose copies out could not be had, and the error of the first one.
  struct Refusals {
    std::unordered_set<PageId> pages;
    std::exception_ptr first;
    void add(PageId page);
  };

  Page* next_victim(int64_t used_after, const Refusals& refused);
  Page* last_victim(const Refusals& refused);
  Page* choose_victim(const EvictionLimits& limits, const Refusals& refused);
  void try_evict(PagerLock& lock, Page& page, Refusals& refused);
  void page_out_and_wait(PagerLock& lock, Page& page, Refusals& refused);
  bool wait_for_any_copy(PagerLock& lock);
  bool wait_for_other_threads(PagerLock& lock) const;
  [[noreturn]] void refuse(int64_t bytes) const;

  PageTable& table_;
  PageTransfer& transfer_;
  DeviceMemory& device_;
  const EvictionOrder order_;
};

}  // namespace spillway::swap
