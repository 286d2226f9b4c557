#include "swap/pager/window_access.h"

#include <chrono>
#include <new>

#include "core/clock.h"

namespace spillway::swap {

bool WindowAccess::pin(const PageUse& use, UserId user) {
  PagerLock lock(table_.mutex());
  const std::span<const PageUse> uses(&use, 1);
  Page& page = *use.page;
  replayer_.announce(lock, uses);
  table_.begin_leases(uses, user);
  try {
    while (page.is(PageState::paging_in)) transfer_.advance_page_in(lock, page);
    if (page.on_device()) {
      transfer_.poll_page_out(page);
      if (use.write) transfer_.make_dirty(lock, page);
      return true;
    }
  } catch (...) {
    table_.end_leases(uses);
    throw;
  }
  ++page.host_pins;
  return false;
}

void WindowAccess::unpin(const PageUse& use, bool resident) noexcept {
  std::lock_guard lock(table_.mutex());
  if (!resident) --use.page->host_pins;
  table_.end_leases({&use, 1});
}

void WindowAccess::read_window(const Page& page, const WindowCopy& copy, void* memory) {
  if (!device_.is_host()) {
    host_.read_window(page.host, copy, memory).order_compute_after();
    return count_window(copy.bytes(), &PagerStats::bytes_in, 0);
  }
  const auto start = Clock::now();
  copy.for_each_run(
      [&](int64_t from, int64_t to) { host_.read(page.host, from, copy.run_bytes, static_cast<char*>(memory) + to); });
  count_window(copy.bytes(), &PagerStats::bytes_in, seconds_since(start));
}

void WindowAccess::write_window(Page& page, const WindowCopy& copy, const void* memory) {
  if (!device_.is_host()) {
    host_.write_window(page.host, copy, memory).order_compute_after();
    return count_window(copy.bytes(), &PagerStats::bytes_out, 0);
  }
  const auto start = Clock::now();
  copy.for_each_run([&](int64_t to, int64_t from) {
    host_.write(page.host, to, copy.run_bytes, static_cast<const char*>(memory) + from);
  });
  count_window(copy.bytes(), &PagerStats::bytes_out, seconds_since(start));
}

Block* WindowAccess::try_allocate(int64_t bytes, Category category, int64_t used_after, std::span<const PageUse> keep) {
  PagerLock lock(table_.mutex());
  try {
    return evictor_.try_make_room(lock, DeviceMemory::charge_of(bytes), used_after, keep)
               ? device_.try_allocate(bytes, category)
               : nullptr;
  } catch (const std::bad_alloc&) {  // the budget has room, but the device has not
    return nullptr;
  }
}

void WindowAccess::prefetch_for_window(Page& page, int64_t used_after, std::span<const PageUse> keep) {
  PagerLock lock(table_.mutex());
  if (!page.may_page_in()) return;
  if (!evictor_.try_make_room(lock, DeviceMemory::charge_of(page.bytes), used_after, keep)) return;
  if (!page.is(PageState::absent)) return;
  const PageHold hold(table_, page);
  loader_.make_resident(lock, page);
}

void WindowAccess::count_window(int64_t bytes, int64_t PagerStats::*counter, double seconds) {
  std::lock_guard lock(table_.mutex());
  table_.stats().*counter += bytes;
  table_.count_delay(&PagerStats::exposed_seconds, seconds);
}

}  // namespace spillway::swap
