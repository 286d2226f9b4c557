#include "swap/pager/pager.h"

#include <exception>
#include <stdexcept>
#include <utility>

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
  paged_bytes_ += block->charged_bytes;
  attach(block, *page);
  return pages_.emplace(page->id, std::move(page)).first->second.get();
}

void Pager::lease(std::span<const PageUse> uses, UserId user) {
  if (device_.is_orphan())
    throw std::logic_error(
        "[pager] this process was forked from one that pages tensors, and has none of its copy lanes; use the tensors "
        "in the parent, or fork while no Session is open");
  Guard guard(mutex_);
  prepare(guard, uses);
  ++clock_;
  for (const PageUse& use : uses) {
    ++use.page->leases;
    use.page->last_use = clock_;
    use.page->released = false;
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
  if (device_.is_orphan()) return;
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
  settle(page);
  if (page.incoming || page.recipe || page.ended) return true;
  if (page.block) return !leaving(page);
  if (page.away) return false;
  reap();
  while (!fits(DeviceMemory::charge_of(page.bytes))) {
    Page* victim = choose_victim(page.next_use, /*clean_only=*/true, {});
    if (!victim || !drop(guard, *victim)) return false;
  }
  return try_page_in(page);
}

void Pager::evict_all() {
  Guard guard(mutex_);
  Refusals refused;
  while (Page* victim = next_victim(-1, refused)) try_send_away(guard, *victim, refused);
  reap();
  if (refused.first) std::rethrow_exception(refused.first);
}

void Pager::bring_home(Page& page) {
  Guard guard(mutex_);
  ++page.leases;  // keeps the record while the lock is given up
  std::exception_ptr error;
  do {
    try {
      restore_readers(guard, page.id);  // they cannot read what is no page
    } catch (...) {
      error = std::current_exception();
    }
    if (!error) error = come_home(guard, page);
  } while (!error && page.holds > 0);  // another thread may have discarded one meanwhile
  --page.leases;
  if (page.ended || (!error && page.block)) forget(page);
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
  page.released = false;
  note_use(page);
}

void Pager::set_next_use(PageId id, int64_t next_use) {
  std::lock_guard lock(mutex_);
  auto found = pages_.find(id);
  if (found == pages_.end()) return;
  found->second->next_use = next_use;
  found->second->released = false;
  note_use(*found->second);
}

void Pager::release(PageId id) {
  std::lock_guard lock(mutex_);
  if (auto found = pages_.find(id); found != pages_.end() && found->second->block) found->second->released = true;
}

void Pager::reclaim(int64_t bytes) {
  Guard guard(mutex_);
  make_room(guard, bytes);
}

void Pager::released(Block* block) noexcept {
  std::lock_guard lock(mutex_);
  if (block->keeper)  // else it was forgotten while the lock was waited for
    end(static_cast<Page*>(block->page));
  else
    device_.free(block);
}

void Pager::absent_owner_died(Page* page) noexcept {
  if (device_.is_orphan()) return;
  std::lock_guard lock(mutex_);
  end(page);
}

void Pager::recategorize(Page& page, Category category) noexcept {
  if (device_.is_orphan()) return;
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

/// Whoever releases the block tells this pager.
void Pager::attach(Block* block, Page& page) noexcept {
  block->page = &page;
  block->keeper = this;
}

void Pager::detach(Block* block) noexcept {
  block->page = nullptr;
  block->keeper = nullptr;
}

/// The owner keeps its memory, which is nobody's page from now on. The record goes with its last lease.
void Pager::forget(Page& page) noexcept {
  page.host.reset();
  if (page.block) {
    paged_bytes_ -= page.block->charged_bytes;
    detach(page.block);  // its owner may free it from here on
    if (page.ownerless) device_.free(page.block);
  }
  if (page.parked) detach(page.parked);  // its owner uses it wherever the bytes are
  page.block = page.parked = nullptr;
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
  if (block) detach(block);
  if (copying) {
    lingering_.push_back({block, std::move(page->host), page->copy});
  } else if (block) {
    paged_bytes_ -= block->charged_bytes;
    device_.free(block);
  }
  if (page->parked) {
    stats_.parked_bytes -= page->parked->charged_bytes;
    device_.free_parked(page->parked);
  }
  page->host.reset();
  page->block = page->incoming = page->parked = nullptr;
  page->outgoing = false;
  page->ended = true;
  if (page->leases == 0) pages_.erase(page->id);
}

void Pager::end_leases(std::span<const PageUse> uses) noexcept {
  end_writes(uses);
  let_go(uses);
}

/// A page that ended while it was leased goes with its last lease.
void Pager::let_go(std::span<const PageUse> uses) noexcept {
  for (const PageUse& use : uses)
    if (--use.page->leases == 0 && use.page->ended) pages_.erase(use.page->id);
}

}  // namespace spillway
