/// The prefetcher, which copies ahead of need: as a schedule asks, or, where there is none, as is likely.
#pragma once
#include <cstdint>

#include "swap/pager/evictor.h"
#include "swap/pager/page_transfer.h"

namespace spillway::swap {

/// Starts copies ahead of need. Nothing here blocks on a copy or reports an error, because a page that cannot be had
/// ahead is had when it is needed. Thread-safe.
class Prefetcher {
 public:
  /// Makes a prefetcher that leaves pages below `small_bytes` alone where there is no schedule.
  Prefetcher(PageTable& table, PageTransfer& transfer, Evictor& evictor, DeviceMemory& device, int64_t small_bytes)
      : table_(table), transfer_(transfer), evictor_(evictor), device_(device), small_bytes_(small_bytes) {}
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// Starts copying a resident, dirty page to the host so that it can be dropped later. Does nothing for other pages.
  void start_page_out(PageId id);
  /// Starts bringing an absent page back if its bytes fit, dropping clean pages whose next use is later. Returns false
  /// when there is no room now. Returns true for a page that is resident, on its way, or gone.
  bool try_page_in(PageId id);
  /// Works for a thread that follows no schedule, between operators. When a quarter of the budget or less is free, the
  /// next pages to evict are copied out already, so that evicting them needs no wait. When operators had to ask for
  /// absent pages since the last call, the pages used last come back into free room. Backward asks in reverse.
  void work_without_schedule();

 private:
  void page_out_ahead(int64_t bytes);
  void page_in_recent(int64_t reserve);

  PageTable& table_;
  PageTransfer& transfer_;
  Evictor& evictor_;
  DeviceMemory& device_;
  const int64_t small_bytes_;
  int64_t demands_seen_ = 0;
};

}  // namespace spillway::swap
