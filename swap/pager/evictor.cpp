#include "swap/pager/evictor.h"

#include <chrono>
#include <deque>
#include <thread>
#include <utility>

#include "core/error.h"

namespace spillway::swap {

/// Called where an error of the page's copy out is being handled.
void Evictor::Refusals::add(PageId page) {
  if (!first) first = std::current_exception();
  pages.insert(page);
}

void Evictor::refuse(int64_t bytes) const {
  const Ledger& ledger = device_.ledger();
  auto who = OperatorScope::current();
  throw OutOfBudget(str("[pager.evict] cannot free ", format_bytes(bytes), " for ", who.empty() ? "an allocation" : who,
                        ": ", format_bytes(ledger.used_bytes()), " of ", format_bytes(ledger.budget_bytes()),
                        " are held and nothing more can leave (", ledger.device(), ")", table_.describe_unpaged()),
                    bytes, ledger.budget_bytes());
}

// --- which ----------------------------------------------------------------------------------------------------------

/// Returns the page that leaves next. Once a copy out was refused, clean pages come first, because they need none.
Page* Evictor::next_victim(int64_t used_after, const Refusals& refused) {
  Page* clean = refused.first ? choose_victim({used_after, /*clean_only=*/true}, refused) : nullptr;
  return clean ? clean : choose_victim({used_after, /*clean_only=*/false}, refused);
}

/// Returns a page that leaves only where no other page, and the end of no copy, makes room.
Page* Evictor::last_victim(const Refusals& refused) {
  return choose_victim({.also_last_resort = true}, refused);
}

Page* Evictor::choose_victim(const EvictionLimits& limits, const Refusals& refused) {
  VictimSearch<Page*> search(order_, limits, nullptr);
  for (auto& [id, page] : table_.pages()) {
    if (!page->may_leave()) continue;
    transfer_.poll_page_out(*page);
    const bool clean = page->is(PageState::resident_clean);
    if (!page->on_device() || (!clean && refused.pages.contains(id))) continue;
    search.consider(page.get(), {.charged_bytes = DeviceMemory::charge_of(page->bytes),
                                 .next_use = page->use.next_use,
                                 .last_use = static_cast<int64_t>(page->use.last_use),
                                 .priority = page->priority,
                                 .is_clean = clean,
                                 .is_paging_out = page->is(PageState::paging_out)});
  }
  return search.victim();
}

// --- how ------------------------------------------------------------------------------------------------------------

void Evictor::make_room(PagerLock& lock, int64_t charge) {
  Refusals refused;
  while (!fits(charge)) {
    table_.free_completed();
    if (fits(charge)) return;
    if (Page* victim = next_victim(-1, refused)) {
      if (victim->is(PageState::resident_clean))
        free_device_bytes(lock, *victim);
      else
        page_out_and_wait(lock, *victim, refused);
      continue;
    }
    if (fits(charge) || wait_for_any_copy(lock)) continue;
    if (Page* left = last_victim(refused)) {
      try_evict(lock, *left, refused);
      continue;
    }
    if (wait_for_other_threads(lock)) continue;
    if (refused.first) std::rethrow_exception(refused.first);
    if (device_.ledger().raise_limit(charge)) return;
    refuse(charge);
  }
}

/// Pages one page out and waits for it. One more page begins to leave meanwhile, so that the next wait is shorter.
void Evictor::page_out_and_wait(PagerLock& lock, Page& page, Refusals& refused) {
  const PageId id = page.id;
  try {
    if (!page.is(PageState::paging_out)) transfer_.begin_page_out(page);
    Page* next = nullptr;
    {
      const PageHold not_again(table_, page);
      next = choose_victim({}, refused);
    }
    if (next && next->is(PageState::resident_dirty)) (void)transfer_.try_page_out(*next);
    transfer_.wait_for_page_out(lock, page);
  } catch (...) {
    refused.add(id);
  }
}

/// Waits for a copy whose end frees bytes or makes a page evictable. Returns false when none is under way.
bool Evictor::wait_for_any_copy(PagerLock& lock) {
  if (const Ticket* copy = table_.pending_free()) {
    transfer_.wait(lock, *copy);
    table_.free_completed();
    return true;
  }
  for (auto& [id, page] : table_.pages()) {
    if (!page->is(PageState::paging_in) || page->leases) continue;
    Page& coming = *page;
    if (!coming.copy.can_order_without_wait()) {
      transfer_.wait(lock, coming.copy);
      return true;
    }
    try {
      transfer_.finish_page_in(lock, coming);
    } catch (const std::exception&) {  // it is absent, which frees its room; its next user tries again and reports
    }
    return true;
  }
  return false;
}

/// Waits a moment for bytes that another thread is about to free. On a GPU, autograd's thread drops a backward's last
/// node after backward() has returned. Returns true when fewer bytes are held then.
bool Evictor::wait_for_other_threads(PagerLock& lock) const {
  constexpr int kLooks = 20;
  constexpr std::chrono::microseconds kBetweenLooks{250};
  if (device_.is_host()) return false;
  const int64_t held = device_.ledger().used_bytes();
  for (int look = 0; look < kLooks; ++look) {
    lock.unlock();
    std::this_thread::sleep_for(kBetweenLooks);
    lock.relock();
    if (device_.ledger().used_bytes() < held) return true;
  }
  return false;
}

bool Evictor::try_make_room(PagerLock& lock, int64_t charge, int64_t used_after, std::span<const PageUse> keep) {
  std::deque<PageHold> holds;
  for (const PageUse& use : keep) holds.emplace_back(table_, *use.page);
  Refusals refused;
  table_.free_completed();
  while (!fits(charge)) {
    Page* victim = next_victim(used_after, refused);
    if (!victim) break;
    try_evict(lock, *victim, refused);
    table_.free_completed();
  }
  return fits(charge);
}

bool Evictor::drop_clean(PagerLock& lock, int64_t charge, int64_t used_after) {
  while (!fits(charge)) {
    Page* victim = choose_victim({used_after, /*clean_only=*/true}, {});
    if (!victim || !free_device_bytes(lock, *victim)) return false;
  }
  return true;
}

bool Evictor::free_physical_memory(PagerLock& lock, int64_t bytes) {
  const int64_t before = table_.paged_bytes();
  Refusals refused;
  while (before - table_.paged_bytes() < bytes) {
    table_.free_completed();
    Page* victim = next_victim(-1, refused);
    if (!victim && wait_for_any_copy(lock)) continue;
    if (!victim) victim = last_victim(refused);
    if (!victim) break;
    try_evict(lock, *victim, refused);
  }
  if (table_.paged_bytes() >= before && refused.first) std::rethrow_exception(refused.first);
  return table_.paged_bytes() < before;
}

void Evictor::evict_all(PagerLock& lock) {
  Refusals refused;
  while (Page* victim = next_victim(-1, refused)) try_evict(lock, *victim, refused);
  table_.free_completed();
  if (refused.first) std::rethrow_exception(refused.first);
}

void Evictor::evict(PagerLock& lock, Page& page) {
  transfer_.poll_page_out(page);
  if (!page.on_device()) return;
  if (page.is(PageState::resident_dirty)) transfer_.begin_page_out(page);
  if (page.is(PageState::paging_out))
    transfer_.wait_for_page_out(lock, page);
  else
    free_device_bytes(lock, page);
}

/// Evicts the page. Records a copy out that cannot be had instead of throwing.
void Evictor::try_evict(PagerLock& lock, Page& page, Refusals& refused) {
  const PageId id = page.id;
  try {
    evict(lock, page);
  } catch (...) {
    refused.add(id);
  }
}

bool Evictor::free_device_bytes(PagerLock& lock, Page& page, PageState then) {
  if (page.owner) {
    auto owner = page.owner->keep_alive();
    if (!owner) {
      PageTransfer::pause(lock);
      return false;
    }
    lock.drop_later(std::move(owner));
    page.owner->vacate(page);
  }
  Block* block = page.block;
  table_.enter(page, then);
  PageTable::detach(block);
  device_.free(block);
  table_.tell_use(page);
  ++table_.stats().clean_drops;
  return true;
}

}  // namespace spillway::swap
