#include "swap/pager/page_loader.h"

#include <new>

namespace spillway::swap {

void PageLoader::make_resident(PagerLock& lock, Page& page) {
  while (!page.is_usable() && !page.is_destroyed()) {
    switch (page.state()) {
      case PageState::paging_out:  // managed memory: the bytes are leaving
        transfer_.finish_pending_page_out(lock, page);
        break;
      case PageState::discarded:
      case PageState::replaying:
        replayer_.replay(lock, page);
        break;
      case PageState::paging_in:
        transfer_.advance_page_in(lock, page);
        break;
      default:
        load_absent(lock, page);
    }
  }
  transfer_.poll_page_out(page);
}

/// Does one round: waits for the uses of the host copy, makes room, or begins the copy.
void PageLoader::load_absent(PagerLock& lock, Page& page) {
  const int64_t charge = DeviceMemory::charge_of(page.bytes);
  if (page.host_pins > 0) return PageTransfer::pause(lock);
  if (!evictor_.fits(charge)) return evictor_.make_room(lock, charge);
  try {
    table_.stats().demand_page_ins += transfer_.begin_page_in(page);
  } catch (const std::bad_alloc&) {  // the budget has room, the device has not: its memory is fragmented, or not ours
    if (!evictor_.free_physical_memory(lock, charge)) throw;
  }
}

}  // namespace spillway::swap
