// Windows of pages: bytes that are used where they are, on the device or in the host copy.
#include <chrono>
#include <new>

#include "swap/pager/pager.h"

namespace spillway {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

Page* Pager::add_absent(int64_t bytes, Category category, std::unique_ptr<PageOwner> owner, UserId user) {
  auto page = std::make_unique<Page>();
  page->bytes = bytes;
  page->category = category;
  page->owner = std::move(owner);
  page->clean = true;
  page->user = user;
  {
    std::lock_guard lock(mutex_);
    page->id = next_id_++;
    page->last_use = ++clock_;
    make_host_room(*page);
  }
  page->host = host_.make(bytes, page->use_time());  // may wait for the disk
  std::lock_guard lock(mutex_);
  note_use(*page);
  return pages_.emplace(page->id, std::move(page)).first->second.get();
}

void Pager::restore(std::span<const PageUse> uses) {
  Guard guard(mutex_);
  restore_before_use(guard, uses);
}

bool Pager::pin(const PageUse& use, UserId user) {
  Guard guard(mutex_);
  prepare(guard, {&use, 1});
  Page& page = *use.page;
  ++page.leases;
  page.last_use = ++clock_;
  page.released = false;
  if (user != kNobody) page.user = user;
  try {
    while (page.incoming) {
      if (page.copy.joinable())
        finish_page_in(guard, page);
      else
        wait(guard, page.copy, &Ticket::join);
    }
    if (page.block) {
      settle(page);
      if (use.write) make_dirty(guard, page);
      return true;
    }
  } catch (...) {
    end_leases({&use, 1});
    throw;
  }
  ++page.away;
  return false;
}

void Pager::unpin(const PageUse& use, bool resident) noexcept {
  std::lock_guard lock(mutex_);
  if (!resident) --use.page->away;
  end_leases({&use, 1});
}

void Pager::read_window(const Page& page, const WindowCopy& copy, void* memory) {
  if (!device_.is_host()) {
    host_.read_window(page.host, copy, memory).join();
    return note_window(copy.bytes(), &PagerStats::bytes_in, 0);
  }
  const auto start = Clock::now();
  copy.for_each_run(
      [&](int64_t from, int64_t to) { host_.read(page.host, from, copy.run_bytes, static_cast<char*>(memory) + to); });
  note_window(copy.bytes(), &PagerStats::bytes_in, std::chrono::duration<double>(Clock::now() - start).count());
}

void Pager::write_window(Page& page, const WindowCopy& copy, const void* memory) {
  if (!device_.is_host()) {
    host_.write_window(page.host, copy, memory).join();
    return note_window(copy.bytes(), &PagerStats::bytes_out, 0);
  }
  const auto start = Clock::now();
  copy.for_each_run([&](int64_t to, int64_t from) {
    host_.write(page.host, to, copy.run_bytes, static_cast<const char*>(memory) + from);
  });
  note_window(copy.bytes(), &PagerStats::bytes_out, std::chrono::duration<double>(Clock::now() - start).count());
}

Block* Pager::try_allocate(int64_t bytes, Category category, int64_t used_after, std::span<const PageUse> keep) {
  Guard guard(mutex_);
  try {
    return make_room_after(guard, bytes, used_after, keep) ? device_.try_allocate(bytes, category) : nullptr;
  } catch (const std::bad_alloc&) {  // the budget has room, the device has not
    return nullptr;
  }
}

void Pager::admit(Page& page, int64_t used_after, std::span<const PageUse> keep) {
  Guard guard(mutex_);
  if (page.block || page.incoming || page.recipe || page.away) return;
  if (!make_room_after(guard, page.bytes, used_after, keep) || page.block || page.incoming || page.recipe) return;
  ++page.leases;  // keeps the record while the lock is given up
  try {
    bring_in(guard, page);
  } catch (...) {
    if (--page.leases == 0 && page.ended) pages_.erase(page.id);
    throw;
  }
  if (--page.leases == 0 && page.ended) pages_.erase(page.id);
}

/// True: a charge for `bytes` fits now. Pages whose copies out cannot be had stay.
bool Pager::make_room_after(Guard& guard, int64_t bytes, int64_t used_after, std::span<const PageUse> keep) {
  for (const PageUse& use : keep) ++use.page->leases;
  try {
    Refusals refused;
    reap();
    while (!fits(DeviceMemory::charge_of(bytes))) {
      Page* victim = next_victim(used_after, refused);
      if (!victim) break;
      try_send_away(guard, *victim, refused);
      reap();
    }
  } catch (...) {
    let_go(keep);
    throw;
  }
  let_go(keep);
  return fits(DeviceMemory::charge_of(bytes));
}

void Pager::note_window(int64_t bytes, int64_t PagerStats::*counter, double seconds) {
  std::lock_guard lock(mutex_);
  stats_.*counter += bytes;
  stats_.exposed_seconds += seconds;
}

}  // namespace spillway
