/// Windows: bytes of a page that are used where they are, on the device or in the host copy.
#pragma once
#include <cstdint>
#include <memory>
#include <span>

#include "core/memory/device_memory.h"
#include "swap/pager/page_loader.h"
#include "swap/tiers/host_tier.h"
#include "swap/tiers/window_copy.h"

namespace spillway::swap {

/// Lets an operator use a page part by part, so that it need not be resident. Thread-safe.
class WindowAccess {
 public:
  WindowAccess(PageTable& table, PageTransfer& transfer, Evictor& evictor, Replayer& replayer, PageLoader& loader,
               DeviceMemory& device, HostTier& host)
      : table_(table),
        transfer_(transfer),
        evictor_(evictor),
        replayer_(replayer),
        loader_(loader),
        device_(device),
        host_(host) {}
  WindowAccess(const WindowAccess&) = delete;
  WindowAccess& operator=(const WindowAccess&) = delete;

  /// Pins a page where it is until unpin(). Returns true when it is resident, leased as by Pager::lease(). Returns
  /// false when it is absent: no thread brings it in meanwhile, and its host copy changes only through write_window.
  /// Waits for copies that are under way. Throws a failed copy's error; nothing is pinned then.
  bool pin(const PageUse& use, UserId user = kNobody);
  void unpin(const PageUse& use, bool resident) noexcept;

  /// Copies between device memory and the host copy of a page that is pinned absent, wherever that copy is. The calling
  /// thread copies where the memory is the host's. Otherwise the lanes copy, and compute is ordered behind them. Throws
  /// DiskError, or the copy's error.
  void read_window(const Page& page, const WindowCopy& copy, void* memory);
  void write_window(Page& page, const WindowCopy& copy, const void* memory);

  /// Returns a block for a new page, made by evicting pages that are next used after `used_after` (-1: any), except
  /// those in `keep`. Returns nullptr when such room cannot be made, and the page had better be born on the host.
  Block* try_allocate(int64_t bytes, Category category, int64_t used_after, std::span<const PageUse> keep);
  /// Brings an absent page in, and waits for it, if room can be made as try_allocate() makes it.
  void prefetch_for_window(Page& page, int64_t used_after, std::span<const PageUse> keep);

 private:
  void count_window(int64_t bytes, int64_t PagerStats::*counter, double seconds);

  PageTable& table_;
  PageTransfer& transfer_;
  Evictor& evictor_;
  Replayer& replayer_;
  PageLoader& loader_;
  DeviceMemory& device_;
  HostTier& host_;
};

}  // namespace spillway::swap
