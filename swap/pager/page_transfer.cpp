#include "swap/pager/page_transfer.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "core/error.h"

namespace spillway::swap {

using enum PageState;

// --- out ------------------------------------------------------------------------------------------------------------

void PageTransfer::make_host_room(int64_t bytes, const PageUseTime& use) {
  if (host_.has_room(bytes)) return;
  std::vector<Page*> others;
  int64_t free_bytes = host_.free_bytes();
  for (auto& [id, other] : table_.pages()) {
    if (!other->is(resident_clean) || !host_.in_slab(other->host)) continue;
    if (host_.has_disk() && !other->use.sooner_than(use)) continue;
    others.push_back(other.get());
    free_bytes += other->bytes;
  }
  if (free_bytes < bytes) return;
  std::sort(others.begin(), others.end(), [](Page* a, Page* b) { return a->use.sooner_than(b->use); });
  for (Page* other : others) {
    if (host_.has_room(bytes)) return;
    table_.enter(*other, resident_dirty, other->block);
    other->host.reset();
  }
}

void PageTransfer::begin_page_out(Page& page) {
  if (page.is_managed()) {
    page.copy = out_.move(page.block->data, page.bytes, Side::host);
  } else {
    make_host_room(page.bytes, page.use);
    page.host = host_.page_out(page.block->data, page.bytes, page.use, page.copy);
  }
  table_.enter(page, paging_out, page.block);
  ++table_.stats().page_outs;
  table_.stats().bytes_out += page.bytes;
}

bool PageTransfer::try_page_out(Page& page) {
  try {
    begin_page_out(page);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

bool PageTransfer::complete_page_out(Page& page) noexcept {
  try {
    std::exchange(page.copy, {}).order_compute_after();
  } catch (...) {
    page.host.reset();
    table_.enter(page, resident_dirty, page.block);
    return false;
  }
  if (page.is_managed())
    become_absent(page);
  else
    table_.enter(page, resident_clean, page.block);
  return true;
}

void PageTransfer::wait_for_page_out(PagerLock& lock, Page& page) {
  Ticket copy = page.copy;
  if (copy.can_order_without_wait() && complete_page_out(page)) return;
  wait(lock, copy, &Ticket::order_compute_after);
  copy.order_compute_after();
}

void PageTransfer::finish_pending_page_out(PagerLock& lock, Page& page) {
  while (page.is(paging_out)) {
    if (page.copy.can_order_without_wait())
      (void)complete_page_out(page);
    else
      wait(lock, page.copy, &Ticket::order_compute_after);
  }
}

void PageTransfer::poll_page_out(Page& page) noexcept {
  if (page.is(paging_out) && page.copy.done()) (void)complete_page_out(page);
}

void PageTransfer::make_dirty(PagerLock& lock, Page& page) {
  finish_pending_page_out(lock, page);
  if (page.is(resident_clean)) table_.enter(page, resident_dirty, page.block);
  page.host.reset();
}

void PageTransfer::become_absent(Page& page) {
  table_.enter(page, absent, page.block);
  device_.uncharge(page.block);
}

// --- in -------------------------------------------------------------------------------------------------------------

/// Returns the block to copy into; nullptr when the budget has no room.
Block* PageTransfer::acquire_block(Page& page) {
  if (!page.block) return device_.try_allocate(page.bytes, page.category);
  return device_.try_recharge(page.block, page.category) ? page.block : nullptr;
}

bool PageTransfer::begin_page_in(Page& page) {
  Block* block = acquire_block(page);
  if (!block) return false;
  table_.enter(page, paging_in, block);
  try {
    page.copy =
        block->is_managed ? in_.move(block->data, page.bytes, Side::device) : host_.page_in(page.host, block->data);
  } catch (...) {
    undo_page_in(page, block);
    throw;
  }
  ++table_.stats().page_ins;
  table_.stats().bytes_in += page.bytes;
  return true;
}

void PageTransfer::undo_page_in(Page& page, Block* block) {
  if (block->is_managed) return become_absent(page);
  table_.enter(page, absent);
  device_.free(block);
}

bool PageTransfer::try_page_in(Page& page) {
  try {
    return begin_page_in(page);
  } catch (const std::exception&) {
    return false;
  }
}

void PageTransfer::finish_page_in(PagerLock& lock, Page& page) {
  auto owner = page.is_orphan() ? std::shared_ptr<void>() : page.owner->keep_alive();
  if (!owner && !page.is_orphan()) return pause(lock);  // another thread destroys it, and waits for the lock to say so
  lock.drop_later(std::move(owner));
  Block* block = page.block;
  try {
    std::exchange(page.copy, {}).order_compute_after();
  } catch (const DiskError& error) {
    undo_page_in(page, block);
    auto who = OperatorScope::current();
    throw DiskError(str("[pager.page-in] a page of ", format_bytes(page.bytes), " (", name(page.category), ", page ",
                        page.id, ") cannot be had back", who.empty() ? "" : str(" for ", who), ": ", error.what()));
  } catch (...) {
    undo_page_in(page, block);
    throw;
  }
  if (page.priority == EvictionPriority::first) page.priority = EvictionPriority::by_use;
  if (block->is_managed) return table_.enter(page, resident_dirty, block);
  table_.enter(page, resident_clean, block);
  PageTable::attach(block, page, keeper_);
  if (page.owner) page.owner->occupy(block);
}

void PageTransfer::advance_page_in(PagerLock& lock, Page& page) {
  if (page.copy.can_order_without_wait())
    finish_page_in(lock, page);
  else
    wait(lock, page.copy, &Ticket::order_compute_after);
}

// --- waits ----------------------------------------------------------------------------------------------------------

void PageTransfer::wait(PagerLock& lock, const Ticket& ticket, Wait how) {
  Ticket copy = ticket;
  auto start = Clock::now();
  lock.unlock();
  try {
    (copy.*how)();
  } catch (...) {
  }
  lock.relock();
  table_.count_delay(&PagerStats::exposed_seconds, seconds_since(start));
}

void PageTransfer::pause(PagerLock& lock) {
  lock.unlock();
  std::this_thread::yield();
  lock.relock();
}

}  // namespace spillway::swap
