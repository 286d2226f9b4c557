// A page's copies: to and from the host tier, and what waits for them. Everything here runs under the lock.
#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include "core/error.h"
#include "swap/pager/pager.h"

namespace spillway {

/// Host copies of resident pages that are used sooner make way for `page`: those are dirty again, which costs a copy
/// where a place on disk would cost a write and a read. Without a disk, all may have to. None does where all of them
/// together would not free enough.
void Pager::make_host_room(const Page& page) {
  if (host_.has_room(page.bytes)) return;
  std::vector<Page*> others;
  int64_t bytes = host_.free_bytes();
  for (auto& [id, other] : pages_) {
    if (!other->block || !other->clean || !host_.in_slab(other->host)) continue;
    if (host_.has_disk() && !other->use_time().sooner_than(page.use_time())) continue;
    others.push_back(other.get());
    bytes += other->bytes;
  }
  if (bytes < page.bytes) return;
  std::sort(others.begin(), others.end(), [](Page* a, Page* b) { return a->use_time().sooner_than(b->use_time()); });
  for (Page* other : others) {
    if (host_.has_room(page.bytes)) return;
    other->clean = false;
    other->host.reset();
  }
}

/// The host tier knows when the pages that are only there are needed.
void Pager::note_use(Page& page) {
  if (!page.block && !page.incoming && page.host) host_.evicted(page.host, page.use_time());
}

void Pager::begin_page_out(Page& page) {
  if (page.block->stays) {
    page.copy = out_.move(page.block->data, page.bytes, Side::host);
  } else {
    make_host_room(page);
    page.host = host_.page_out(page.block->data, page.bytes, page.use_time(), page.copy);
  }
  page.outgoing = true;
  ++stats_.page_outs;
  stats_.bytes_out += page.bytes;
}

/// For page-outs ahead of need. False: the page stays, since the host has no room for it or the copy cannot be started,
/// and an eviction that needs its room reports that.
bool Pager::try_page_out(Page& page) {
  try {
    begin_page_out(page);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

/// False: there is no room. A page whose copy cannot be started is absent as before.
bool Pager::begin_page_in(Page& page) {
  if (page.parked) {
    if (!unpark(page)) return false;
    try {
      page.copy = in_.move(page.incoming->data, page.bytes, Side::device);
    } catch (...) {
      park(page, std::exchange(page.incoming, nullptr));
      throw;
    }
  } else {
    Block* block = device_.try_allocate(page.bytes, page.category);
    if (!block) return false;
    try {
      page.copy = host_.page_in(page.host, block->data);
    } catch (...) {
      device_.free(block);
      throw;
    }
    page.incoming = block;
    paged_bytes_ += block->charged_bytes;
  }
  ++stats_.page_ins;
  stats_.bytes_in += page.bytes;
  return true;
}

/// The page-in's copy is done, or compute ordered behind it: the owner gets its bytes, or the copy's error is thrown
/// and the page stays absent.
void Pager::finish_page_in(Guard& guard, Page& page) {
  auto owner = page.owner->keep_alive();
  if (!owner) {
    pause(guard);
    return;
  }
  guard.kept.push_back(std::move(owner));
  Block* block = std::exchange(page.incoming, nullptr);
  Ticket copy = std::exchange(page.copy, {});
  auto undo = [&] {
    if (block->stays) return park(page, block);
    paged_bytes_ -= block->charged_bytes;
    device_.free(block);
  };
  try {
    copy.join();
  } catch (const DiskError& error) {
    undo();
    auto who = OperatorScope::current();
    throw DiskError(str("[pager.page-in] a page of ", format_bytes(page.bytes), " (", name(page.category), ", page ",
                        page.id, ") cannot be had back", who.empty() ? "" : str(" for ", who), ": ", error.what()));
  } catch (...) {
    undo();
    throw;
  }
  page.block = block;
  page.released = false;
  if (block->stays) return;
  attach(block, page);
  page.clean = true;
  page.owner->occupy(block);
}

void Pager::bring_in(Guard& guard, Page& page) {
  while ((!page.block || leaving(page)) && !page.ended) {
    if (page.block) {
      let_pass(guard, page);
    } else if (page.recipe) {
      restore(guard, page);
    } else if (page.incoming) {
      if (page.copy.joinable())
        finish_page_in(guard, page);
      else
        wait(guard, page.copy, &Ticket::join);
    } else if (page.away) {
      pause(guard);
    } else if (!fits(DeviceMemory::charge_of(page.bytes))) {
      make_room(guard, DeviceMemory::charge_of(page.bytes));
    } else {
      demand_page_in(guard, page);
    }
  }
  settle(page);
}

/// Notices a page-out that has finished. After one that failed the page is resident and dirty as before; whoever needs
/// its room tries again, and reports.
void Pager::settle(Page& page) noexcept {
  if (page.outgoing && page.copy.done()) (void)pass(page);
}

/// Orders compute behind the page's copy out, which can be joined: from here on it counts as done, and the page as
/// clean; or as absent, if its block stays, since then the bytes have left. False after one that failed.
bool Pager::pass(Page& page) noexcept {
  page.outgoing = false;
  try {
    std::exchange(page.copy, {}).join();
  } catch (...) {
    page.host.reset();
    return page.clean = false;
  }
  if (page.block->stays)
    park(page, std::exchange(page.block, nullptr));
  else
    page.clean = true;
  return true;
}

/// Managed memory whose bytes move while its address stays: on its way out, so that who needs it must bring it back.
bool Pager::leaving(const Page& page) noexcept {
  return page.outgoing && page.block->stays;
}

void Pager::park(Page& page, Block* block) noexcept {
  page.parked = block;
  paged_bytes_ -= block->charged_bytes;
  stats_.parked_bytes += block->charged_bytes;
  stats_.parked_peak_bytes = std::max(stats_.parked_peak_bytes, stats_.parked_bytes);
  device_.park(block);
}

bool Pager::unpark(Page& page) noexcept {
  if (!device_.try_unpark(page.parked, page.category)) return false;
  page.incoming = std::exchange(page.parked, nullptr);
  paged_bytes_ += page.incoming->charged_bytes;
  stats_.parked_bytes -= page.incoming->charged_bytes;
  return true;
}

/// No copy out is under way afterwards.
void Pager::let_pass(Guard& guard, Page& page) {
  while (page.outgoing) {
    if (page.copy.joinable())
      (void)pass(page);
    else
      wait(guard, page.copy, &Ticket::join);
  }
}

void Pager::make_dirty(Guard& guard, Page& page) {
  let_pass(guard, page);
  page.clean = false;
  page.host.reset();
}

/// Gives up the lock while the copy runs (or until compute is ordered behind it). What it failed with is left to the
/// caller.
void Pager::wait(Guard& guard, const Ticket& ticket, void (Ticket::*how)() const) {
  Ticket copy = ticket;
  auto start = std::chrono::steady_clock::now();
  guard.lock.unlock();
  try {
    (copy.*how)();
  } catch (...) {
  }
  guard.lock.lock();
  stats_.exposed_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Lets another thread have the lock.
void Pager::pause(Guard& guard) {
  guard.lock.unlock();
  std::this_thread::yield();
  guard.lock.lock();
}

void Pager::reap() {
  std::erase_if(lingering_, [&](Lingering& l) {
    if (!l.copy.done()) return false;
    paged_bytes_ -= l.block->charged_bytes;
    device_.free(l.block);
    return true;
  });
}

}  // namespace spillway
