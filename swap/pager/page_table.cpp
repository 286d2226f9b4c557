#include "swap/pager/page_table.h"

#include <algorithm>
#include <stdexcept>

#include "core/error.h"

namespace spillway::swap {

PageTable::~PageTable() {
  for (PendingFree& pending : pending_) {
    try {
      pending.copy.wait();
    } catch (...) {  // the page is gone, so no caller is left to tell
    }
    device_.free(pending.block);
  }
}

// --- users ----------------------------------------------------------------------------------------------------------

UserId PageTable::add_user() {
  std::lock_guard lock(mutex_);
  ++users_;
  return ++last_user_;
}

void PageTable::remove_user(UserId user) noexcept {
  stop_watching(user);
  std::lock_guard lock(mutex_);
  --users_;
}

int64_t PageTable::users() const {
  std::lock_guard lock(mutex_);
  return users_;
}

void PageTable::set_next_use(Page& page, int64_t next_use) {
  std::lock_guard lock(mutex_);
  page.use.next_use = next_use;
  page.priority = EvictionPriority::by_use;
  tell_use(page);
}

void PageTable::set_next_use(PageId id, int64_t next_use) {
  std::lock_guard lock(mutex_);
  Page* page = find(id);
  if (!page) return;
  page->use.next_use = next_use;
  page->priority = EvictionPriority::by_use;
  tell_use(*page);
}

void PageTable::evict_first(PageId id) {
  std::lock_guard lock(mutex_);
  if (Page* page = find(id); page && page->on_device()) page->priority = EvictionPriority::first;
}

void PageTable::forget_next_uses(UserId user) {
  for_each_of(user, [](Page& page) {
    page.use.next_use = kNextUseUnknown;
    if (page.priority == EvictionPriority::first) page.priority = EvictionPriority::by_use;
  });
}

void PageTable::watch_destroyed(UserId user) {
  stop_watching(user);
  std::lock_guard lock(mutex_);
  watchers_.push_back({user, {}});
}

void PageTable::take_destroyed(UserId user, std::vector<PageId>& destroyed) {
  if (recorded_destroyed_.load(std::memory_order_acquire) == 0) return;
  std::lock_guard lock(mutex_);
  for (Watcher& watcher : watchers_) {
    if (watcher.user != user) continue;
    destroyed.insert(destroyed.end(), watcher.destroyed.begin(), watcher.destroyed.end());
    recorded_destroyed_ -= std::ssize(watcher.destroyed);
    watcher.destroyed.clear();
  }
}

void PageTable::stop_watching(UserId user) noexcept {
  std::lock_guard lock(mutex_);
  std::erase_if(watchers_, [&](const Watcher& watcher) {
    if (watcher.user != user) return false;
    recorded_destroyed_ -= std::ssize(watcher.destroyed);
    return true;
  });
}

// --- records, under the lock ----------------------------------------------------------------------------------------

std::string PageTable::describe_unpaged() const {
  BytesByCategory unpaged = device_.ledger().used_by_category();
  const auto subtract = [&](const Block& block) { unpaged[block.category] -= block.charged_bytes; };
  for (const auto& [id, page] : pages_)
    if (device_bytes(*page) > 0) subtract(*page->block);
  for (const PendingFree& pending : pending_) subtract(*pending.block);
  int64_t total = 0;
  std::string parts;
  for (size_t c = 0; c < kCategoryCount; ++c) {
    if (unpaged[c] <= 0) continue;
    total += unpaged[c];
    parts += str(parts.empty() ? "" : ", ", name(static_cast<Category>(c)), " ", format_bytes(unpaged[c]));
  }
  return total == 0 ? "" : str("; ", format_bytes(total), " of them belong to no page (", parts, ")");
}

void PageTable::count_delay(double PagerStats::*counter, double seconds) noexcept {
  stats_.*counter += seconds;
  delayed_seconds_ = stats_.exposed_seconds + stats_.replay_seconds;
}

std::unique_ptr<Page> PageTable::make_page(int64_t bytes, Category category, std::unique_ptr<PageOwner> owner,
                                           UserId user) {
  auto page = std::make_unique<Page>();
  page->id = next_id_++;
  page->bytes = bytes;
  page->category = category;
  page->owner = std::move(owner);
  page->user = user;
  page->use.last_use = ++moment_;
  return page;
}

Page* PageTable::add(std::unique_ptr<Page> page, Block* block, PageKeeper& keeper) {
  page->block = block;
  page->state_ = block ? PageState::resident_dirty : PageState::absent;
  paged_bytes_ += device_bytes(*page);
  if (block) attach(block, *page, keeper);
  tell_use(*page);
  return pages_.emplace(page->id, std::move(page)).first->second.get();
}

Page* PageTable::find(PageId id) const {
  auto found = pages_.find(id);
  return found == pages_.end() ? nullptr : found->second.get();
}

/// Returns the bytes that the page's block takes on the device. A block that is being filled counts as well.
int64_t PageTable::device_bytes(const Page& page) const noexcept {
  return page.on_device() || page.is(PageState::paging_in) ? page.block->charged_bytes : 0;
}

int64_t PageTable::managed_host_bytes(const Page& page) const noexcept {
  return page.is(PageState::absent) && page.block ? page.block->charged_bytes : 0;
}

void PageTable::enter(Page& page, PageState state, Block* block) {
  if (!may_follow(page.state_, state))
    throw std::logic_error(
        str("[pager] page ", page.id, " is ", name(page.state_), ", which ", name(state), " may not follow"));
  paged_bytes_ -= device_bytes(page);
  stats_.parked_bytes -= managed_host_bytes(page);
  page.state_ = state;
  page.block = block;
  paged_bytes_ += device_bytes(page);
  stats_.parked_bytes += managed_host_bytes(page);
  stats_.parked_peak_bytes = std::max(stats_.parked_peak_bytes, stats_.parked_bytes);
}

void PageTable::recategorize(Page& page, Category category) noexcept {
  page.category = category;
  if (page.on_device() || page.is(PageState::paging_in)) device_.recategorize(page.block, category);
}

void PageTable::attach(Block* block, Page& page, PageKeeper& keeper) noexcept {
  block->page = &page;
  block->keeper = &keeper;
}

void PageTable::detach(Block* block) noexcept {
  block->page = nullptr;
  block->keeper = nullptr;
}

void PageTable::tell_use(Page& page) {
  if (page.is(PageState::absent) && page.host) host_.mark_last_copy(page.host, page.use);
}

void PageTable::unregister(Page& page) noexcept {
  Block* block = page.block;
  page.host.reset();
  if (!page.is_destroyed()) enter(page, PageState::destroyed);
  if (block) detach(block);  // its owner may free it from here on, and uses it wherever the bytes are
  if (block && page.is_orphan()) device_.free(block);
  if (page.leases == 0) pages_.erase(page.id);
}

void PageTable::destroy(Page& page) noexcept {
  if (!page.is_orphan())
    for (Watcher& watcher : watchers_) {
      watcher.destroyed.push_back(page.id);
      ++recorded_destroyed_;
    }
  if (page.replay_refs > 0) {
    page.owner = nullptr;
    return;
  }
  if (page.is(PageState::discarded)) {
    release_refs(*page.recipe);
    page.recipe.reset();
  }
  const bool copies = (page.is(PageState::paging_out) || page.is(PageState::paging_in)) && !page.copy.done();
  const bool charged = !page.is(PageState::absent);
  Block* block = page.block;
  enter(page, PageState::destroyed);
  if (block && !charged) device_.free_uncharged(block);
  if (block && charged) {
    detach(block);
    if (copies) {
      paged_bytes_ += block->charged_bytes;
      pending_.push_back({block, std::move(page.host), page.copy});
    } else {
      device_.free(block);
    }
  }
  page.host.reset();
  if (page.leases == 0) pages_.erase(page.id);
}

void PageTable::release_refs(const ReplayRecipe& recipe) noexcept {
  for (const ReplayRecipe::Input& input : recipe.inputs()) {
    Page* page = find(input.page);
    if (page && --page->replay_refs == 0 && page->is_orphan()) destroy(*page);
  }
}

void PageTable::begin_leases(std::span<const PageUse> uses, UserId user) noexcept {
  ++moment_;
  for (const PageUse& use : uses) {
    ++use.page->leases;
    use.page->use.last_use = moment_;
    use.page->priority = EvictionPriority::by_use;
    if (user != kNobody) use.page->user = user;
  }
}

void PageTable::end_writes(std::span<const PageUse> uses) noexcept {
  for (const PageUse& use : uses) {
    use.page->writers -= use.write;
    use.page->write_epoch += use.write;
  }
}

void PageTable::end_leases(std::span<const PageUse> uses) noexcept {
  end_writes(uses);
  for (const PageUse& use : uses) end_lease(*use.page);
}

void PageTable::end_lease(Page& page) noexcept {
  if (--page.leases == 0 && page.is_destroyed()) pages_.erase(page.id);
}

void PageTable::free_completed() noexcept {
  std::erase_if(pending_, [&](PendingFree& pending) {
    if (!pending.copy.done()) return false;
    paged_bytes_ -= pending.block->charged_bytes;
    device_.free(pending.block);
    return true;
  });
}

}  // namespace spillway::swap
