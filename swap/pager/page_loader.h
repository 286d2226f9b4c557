/// The loader, which brings pages to the device for callers that need them now.
#pragma once
#include "swap/pager/evictor.h"
#include "swap/pager/page_transfer.h"
#include "swap/pager/replayer.h"

namespace spillway::swap {

class PageLoader {
 public:
  PageLoader(PageTable& table, PageTransfer& transfer, Evictor& evictor, Replayer& replayer)
      : table_(table), transfer_(transfer), evictor_(evictor), replayer_(replayer) {}
  PageLoader(const PageLoader&) = delete;
  PageLoader& operator=(const PageLoader&) = delete;

  /// Makes the page usable in whatever way is left: evicts others for it, copies it in, replays it. The caller holds a
  /// lease. Returns at once for a destroyed page. Called under the lock. Throws OutOfBudget, DiskError, or the error of
  /// a copy or a recipe; the page is where it was then.
  void make_resident(PagerLock& lock, Page& page);

 private:
  void load_absent(PagerLock& lock, Page& page);

  PageTable& table_;
  PageTransfer& transfer_;
  Evictor& evictor_;
  Replayer& replayer_;
};

}  // namespace spillway::swap
