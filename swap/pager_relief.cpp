// What the pager does when the device has no memory although the budget allows it: memory in pieces, or others' use.
#include <new>

#include "swap/pager.h"

namespace spillway {

bool Pager::relieve(int64_t bytes) {
  Guard guard(mutex_);
  return relieve(guard, bytes);
}

/// Drops pages of at least `bytes` together, or what there is.
bool Pager::relieve(Guard& guard, int64_t bytes) {
  const int64_t before = paged_bytes_;
  while (before - paged_bytes_ < bytes) {
    reap();
    if (Page* victim = choose_victim(-1, /*clean_only=*/false))
      send_away(guard, *victim);
    else if (!make_progress(guard))
      break;
  }
  return paged_bytes_ < before;
}

/// For page-ins ahead of need: without memory the page stays away.
bool Pager::try_page_in(Page& page) {
  try {
    return begin_page_in(page);
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void Pager::demand_page_in(Guard& guard, Page& page) {
  try {
    stats_.demand_page_ins += begin_page_in(page);
  } catch (const std::bad_alloc&) {
    if (!relieve(guard, DeviceMemory::charge_of(page.bytes))) throw;
  }
}

}  // namespace spillway
