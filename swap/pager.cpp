#include "swap/pager.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>
#include <tuple>
#include <utility>

#include "core/error.h"

namespace spillway {

Pager::Pager(DeviceMemory& device, HostSlab& host, Timeline& out, Timeline& in, int64_t small_bytes, DiskTier* disk)
    : device_(device), host_(host, out, in, disk), out_(out), in_(in), small_bytes_(small_bytes) {}

Pager::~Pager() {
  for (Lingering& l : lingering_) {
    try {
      l.copy.wait();
    } catch (...) {  // the page is gone, and nobody is left to tell
    }
    device_.free(l.block);
  }
}

Page* Pager::add(Block* block, int64_t bytes, std::unique_ptr<PageOwner> owner, UserId user) {
  std::lock_guard lock(mutex_);
  auto page = std::make_unique<Page>();
  page->id = next_id_++;
  page->bytes = bytes;
  page->block = block;
  page->category = block->category;
  page->owner = std::move(owner);
  page->last_use = ++clock_;
  page->user = user;
  block->page = page.get();
  paged_bytes_ += block->charged_bytes;
  return pages_.emplace(page->id, std::move(page)).first->second.get();
}

void Pager::lease(std::span<const PageUse> uses, UserId user) {
  Guard guard(mutex_);
  restore_before_use(guard, uses);
  ++clock_;
  for (const PageUse& use : uses) {
    ++use.page->leases;
    use.page->last_use = clock_;
    if (user != kNobody) use.page->user = user;
  }
  try {
    // All that are absent start together where there is room; then each is waited for.
    for (const PageUse& use : uses)
      if (Page& page = *use.page;
          !page.block && !page.incoming && !page.recipe && !page.away && fits(DeviceMemory::charge_of(page.bytes)))
        stats_.demand_page_ins += try_page_in(page);
    for (const PageUse& use : uses) bring_in(guard, *use.page);
    for (const PageUse& use : uses)
      if (use.write) make_dirty(guard, *use.page);
  } catch (...) {
    end_leases(uses);
    throw;
  }
}

void Pager::unlease(std::span<const PageUse> uses) noexcept {
  std::lock_guard lock(mutex_);
  for (const PageUse& use : uses)
    if (use.next_use != kNextUseKept) use.page->next_use = use.next_use;
  end_leases(uses);
}

void Pager::start_page_out(PageId id) {
  Guard guard(mutex_);
  auto found = pages_.find(id);
  if (found == pages_.end()) return;
  Page& page = *found->second;
  // A leased page may be written through a pointer while the copy reads it, and would then be clean with old bytes.
  if (!page.block || page.clean || page.outgoing || page.ended || page.leases) return;
  (void)try_page_out(page);
}

bool Pager::try_prefetch(PageId id) {
  Guard guard(mutex_);
  auto found = pages_.find(id);
  if (found == pages_.end()) return true;
  Page& page = *found->second;
  if (page.block || page.incoming || page.recipe || page.ended) return true;
  if (page.away) return false;
  reap();
  while (!fits(DeviceMemory::charge_of(page.bytes))) {
    Page* victim = choose_victim(page.next_use, /*clean_only=*/true);
    if (!victim || !drop(guard, *victim)) return false;
  }
  return try_page_in(page);
}

void Pager::evict_all() {
  Guard guard(mutex_);
  while (Page* victim = choose_victim(-1, /*clean_only=*/false)) send_away(guard, *victim);
  reap();
}

void Pager::bring_home(Page& page) {
  Guard guard(mutex_);
  restore_readers(guard, page.id);  // they cannot read what is no page
  ++page.leases;
  std::exception_ptr error = come_home(guard, page);
  --page.leases;
  if (page.block || page.ended) forget(page);
  if (error) std::rethrow_exception(error);
}

void Pager::bring_home() {
  Guard guard(mutex_);
  std::vector<Page*> all;
  for (auto& [id, page] : pages_) {
    all.push_back(page.get());
    ++page->leases;  // keeps the record while the lock is given up, and the bytes where they are
  }
  std::exception_ptr error;
  for (Page* page : all)
    if (auto failed = come_home(guard, *page); failed && !error) error = failed;
  for (Page* page : all) {
    --page->leases;
    // Where a replay failed, it will be tried again, and has to read this one.
    if (page->ended || (page->block && page->holds == 0)) forget(*page);
  }
  while (!lingering_.empty()) {
    wait(guard, lingering_.front().copy);
    reap();
  }
  if (error) std::rethrow_exception(error);
}

void Pager::set_next_use(Page& page, int64_t next_use) {
  std::lock_guard lock(mutex_);
  page.next_use = next_use;
  note_use(page);
}

void Pager::set_next_use(PageId id, int64_t next_use) {
  std::lock_guard lock(mutex_);
  auto found = pages_.find(id);
  if (found == pages_.end()) return;
  found->second->next_use = next_use;
  note_use(*found->second);
}

void Pager::reclaim(int64_t bytes) {
  Guard guard(mutex_);
  make_room(guard, bytes);
}

void Pager::released(Block* block) noexcept {
  std::lock_guard lock(mutex_);
  if (block->page)
    end(static_cast<Page*>(block->page));
  else
    device_.free(block);
}

void Pager::absent_owner_died(Page* page) noexcept {
  std::lock_guard lock(mutex_);
  end(page);
}

void Pager::recategorize(Page& page, Category category) noexcept {
  std::lock_guard lock(mutex_);
  page.category = category;
  if (page.block) device_.recategorize(page.block, category);
  if (page.incoming) device_.recategorize(page.incoming, category);
}

PagerStats Pager::stats() const {
  std::lock_guard lock(mutex_);
  PagerStats stats = stats_;
  stats.exposed_seconds += out_.totals().stalled_seconds + in_.totals().stalled_seconds;
  return stats;
}

double Pager::exposed_seconds() const {
  std::lock_guard lock(mutex_);
  return stats_.exposed_seconds;
}

double Pager::delayed_seconds() const {
  std::lock_guard lock(mutex_);
  return stats_.exposed_seconds + stats_.replay_seconds;
}

int64_t Pager::paged_bytes() const {
  std::lock_guard lock(mutex_);
  return paged_bytes_;
}

// --- everything below runs under the lock ---------------------------------------------------------------------------

bool Pager::fits(int64_t bytes) const {
  const Ledger& ledger = device_.ledger();
  return bytes <= ledger.budget_bytes() - ledger.used_bytes();
}

void Pager::make_room(Guard& guard, int64_t bytes) {
  while (!fits(bytes)) {
    reap();
    if (fits(bytes)) return;
    Page* victim = choose_victim(-1, /*clean_only=*/false);
    if (!victim) {
      if (make_progress(guard)) continue;
      const Ledger& ledger = device_.ledger();
      auto who = OperatorScope::current();
      throw OutOfBudget(
          str("[pager.evict] cannot free ", format_bytes(bytes), " for ", who.empty() ? "an allocation" : who, ": ",
              format_bytes(ledger.used_bytes()), " of ", format_bytes(ledger.budget_bytes()),
              " are held and nothing more can leave (", ledger.device(), ")"),
          bytes, ledger.budget_bytes());
    }
    settle(*victim);
    if (victim->clean) {
      drop(guard, *victim);
      continue;
    }
    if (!victim->outgoing) begin_page_out(*victim);
    // One more leaves meanwhile, so that the next wait is shorter.
    ++victim->leases;
    Page* next = choose_victim(-1, /*clean_only=*/false);
    --victim->leases;
    if (next && !next->clean && !next->outgoing) (void)try_page_out(*next);
    finish_page_out(guard, *victim);
  }
}

/// Waits for something that frees bytes or makes a page evictable. False: nothing is under way.
bool Pager::make_progress(Guard& guard) {
  if (!lingering_.empty()) {
    wait(guard, lingering_.front().copy);
    reap();
    return true;
  }
  for (auto& [id, page] : pages_) {
    if (!page->incoming || page->leases) continue;
    Page& coming = *page;
    if (!coming.copy.joinable())
      wait(guard, coming.copy);
    else
      finish_page_in(guard, coming);
    return true;
  }
  return false;
}

Page* Pager::choose_victim(int64_t next_use_after, bool clean_only) {
  Page* best = nullptr;
  auto rank = [&](const Page& page) {
    bool small = page.bytes < small_bytes_;
    return std::make_tuple(!small, page.next_use, page.clean, page.outgoing, ~page.last_use);
  };
  for (auto& [id, page] : pages_) {
    if (!page->block || page->leases || page->ended || page->next_use <= next_use_after) continue;
    settle(*page);
    if (clean_only && !page->clean) continue;
    if (!best || rank(*page) > rank(*best)) best = page.get();
  }
  return best;
}

/// One round towards the page's absence.
void Pager::send_away(Guard& guard, Page& page) {
  settle(page);
  if (!page.clean && !page.outgoing) begin_page_out(page);
  if (!page.outgoing)
    drop(guard, page);
  else
    finish_page_out(guard, page);
}

/// The page's copy out is done, or compute ordered behind it, so that its block may go. Throws what it failed with.
void Pager::finish_page_out(Guard& guard, Page& page) {
  Ticket copy = page.copy;
  if (copy.joinable() && pass(page)) return;
  wait(guard, copy, &Ticket::join);
  copy.join();
}

bool Pager::drop(Guard& guard, Page& page) {
  auto owner = page.owner->keep_alive();
  if (!owner) {  // dies on another thread, which waits for the lock to say so
    pause(guard);
    return false;
  }
  guard.kept.push_back(std::move(owner));
  Block* block = page.block;
  page.owner->vacate(page);
  page.block = nullptr;
  block->page = nullptr;
  paged_bytes_ -= block->charged_bytes;
  device_.free(block);
  note_use(page);
  ++stats_.clean_drops;
  return true;
}

/// Host copies of resident pages that are used sooner make way for `page`: those are dirty again, which costs a copy
/// where a place on disk would cost a write and a read. Without a disk, all may have to.
void Pager::make_host_room(const Page& page) {
  while (!host_.has_room(page.bytes)) {
    Page* soonest = nullptr;
    for (auto& [id, other] : pages_)
      if (other->block && other->clean && (!soonest || other->use_time().sooner_than(soonest->use_time())) &&
          (!host_.has_disk() || other->use_time().sooner_than(page.use_time())) && host_.in_slab(other->host))
        soonest = other.get();
    if (!soonest) return;
    soonest->clean = false;
    soonest->host.reset();
  }
}

/// The host tier knows when the pages that are only there are needed.
void Pager::note_use(Page& page) {
  if (!page.block && !page.incoming && page.host) host_.evicted(page.host, page.use_time());
}

void Pager::begin_page_out(Page& page) {
  make_host_room(page);
  page.host = host_.page_out(page.block->data, page.bytes, page.use_time(), page.copy);
  page.outgoing = true;
  ++stats_.page_outs;
  stats_.bytes_out += page.bytes;
}

/// For page-outs ahead of need. False: without room on the host the page stays, and an eviction that needs its room
/// reports that.
bool Pager::try_page_out(Page& page) {
  try {
    begin_page_out(page);
    return true;
  } catch (const OutOfBudget&) {
    return false;
  }
}

bool Pager::begin_page_in(Page& page) {
  Block* block = device_.try_allocate(page.bytes, page.category);
  if (!block) return false;
  page.incoming = block;
  paged_bytes_ += block->charged_bytes;
  page.copy = host_.page_in(page.host, block->data);
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
  block->page = &page;
  page.clean = true;
  page.owner->occupy(block);
}

void Pager::bring_in(Guard& guard, Page& page) {
  while (!page.block && !page.ended) {
    if (page.recipe) {
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
/// clean. False after one that failed.
bool Pager::pass(Page& page) noexcept {
  page.outgoing = false;
  try {
    std::exchange(page.copy, {}).join();
    page.clean = true;
  } catch (...) {
    page.clean = false;
    page.host.reset();
  }
  return page.clean;
}

void Pager::make_dirty(Guard& guard, Page& page) {
  while (page.outgoing) {
    if (page.copy.joinable())
      (void)pass(page);
    else
      wait(guard, page.copy, &Ticket::join);
  }
  page.clean = false;
  ++page.write_epoch;
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

/// The page's bytes are on the device and nothing uses them, or here is why not. Under a lease.
std::exception_ptr Pager::come_home(Guard& guard, Page& page) {
  try {
    bring_in(guard, page);
    while (page.outgoing) {
      wait(guard, page.copy);
      settle(page);
    }
  } catch (...) {  // a page-out that failed leaves the bytes where they are
    if (!page.block) return std::current_exception();
  }
  return nullptr;
}

/// The owner keeps its memory, which is nobody's page from now on. The record goes with its last lease.
void Pager::forget(Page& page) noexcept {
  page.host.reset();
  if (page.block) {
    page.block->page = nullptr;
    paged_bytes_ -= page.block->charged_bytes;
    if (page.ownerless) device_.free(page.block);
  }
  page.block = nullptr;
  page.clean = false;
  page.ended = true;
  if (page.leases == 0) pages_.erase(page.id);
}

/// The storage is gone: so are its bytes, once no copy uses them.
void Pager::end(Page* page) noexcept {
  Block* block = page->block ? page->block : page->incoming;
  bool copying = (page->outgoing || page->incoming) && !page->copy.done();
  if (!page->ownerless)
    for (EndsOf& ends : noting_) ends.ended.push_back(page->id);
  if (page->holds > 0) return lose_owner(*page);
  if (page->recipe && !page->restoring) {
    release_holds(*page->recipe);
    page->recipe.reset();
  }
  if (block) block->page = nullptr;
  if (copying) {
    lingering_.push_back({block, std::move(page->host), page->copy});
  } else if (block) {
    paged_bytes_ -= block->charged_bytes;
    device_.free(block);
  }
  page->host.reset();
  page->block = page->incoming = nullptr;
  page->outgoing = false;
  page->ended = true;
  if (page->leases == 0) pages_.erase(page->id);
}

/// A page that ended while it was leased goes with its last lease.
void Pager::end_leases(std::span<const PageUse> uses) noexcept {
  for (const PageUse& use : uses)
    if (--use.page->leases == 0 && use.page->ended) pages_.erase(use.page->id);
}

}  // namespace spillway
