// What the pager does when the device has no memory although the budget allows it: memory in pieces, or others' use.
#include <exception>
#include <new>

#include "swap/pager/pager.h"

namespace spillway {

bool Pager::relieve(int64_t bytes) {
  Guard guard(mutex_);
  return relieve(guard, bytes);
}

/// Drops pages of at least `bytes` together, or what there is. Throws what kept the first of them when none could go.
bool Pager::relieve(Guard& guard, int64_t bytes) {
  const int64_t before = paged_bytes_;
  Refusals refused;
  while (before - paged_bytes_ < bytes) {
    reap();
    if (Page* victim = next_victim(-1, refused))
      try_send_away(guard, *victim, refused);
    else if (!make_progress(guard))
      break;
  }
  if (paged_bytes_ >= before && refused.first) std::rethrow_exception(refused.first);
  return paged_bytes_ < before;
}

/// For page-ins ahead of need. False: the page stays away, and whoever needs it tries again and reports.
bool Pager::try_page_in(Page& page) {
  try {
    return begin_page_in(page);
  } catch (const std::exception&) {
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
