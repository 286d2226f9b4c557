/// Copies ahead of need: those that a schedule asks for, and those that are likely where there is none.
#pragma once
#include <cstdint>

#include "swap/pager/evictor.h"
#include "swap/pager/page_transfer.h"

namespace spillway {

/// Nothing here blocks on a copy or reports an error: what cannot be had ahead is had when it is needed. Thread-safe.
class Prefetcher {
 public:
  /// Pages below `small_bytes` are left alone where there is no schedule.
  Prefetcher(PageTable& table, PageTransfer& transfer, Evictor& evictor, DeviceMemory& device, int64_t small_bytes)
      : table_(table), transfer_(transfer), evictor_(evictor), device_(device), small_bytes_(small_bytes) {}
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// Starts copying a resident, dirty page to the host so that it can be dropped later. Does nothing for other pages.
  void start_page_out(PageId id);
  /// Starts bringing an absent page back if its bytes fit, dropping clean pages whose next use is later. False: no room
  /// now. True for a page that is resident, on its way, or gone.
  bool try_page_in(PageId id);
  /// For a thread that follows no schedule, between operators. When a quarter of the budget or less is free, what would
  /// be evicted next is copied out already, so that evicting it needs no wait. When operators had to ask for absent
  /// pages since the last call, those that were used last come back into free room: backward asks in reverse.
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

}  // namespace spillway
