// Pages that are discarded without a copy and made again.
#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <utility>

#include "core/error.h"
#include "swap/pager/pager.h"

namespace spillway {
namespace {

/// Stands in for a storage that is gone while its bytes are still read by recipes.
class Nobody final : public PageOwner {
 public:
  std::shared_ptr<void> keep_alive() override { return std::make_shared<char>(); }
  void vacate(Page&) override {}
  void occupy(Block*) override {}
};

}  // namespace

bool Pager::discard(PageId id, std::unique_ptr<Recipe> recipe) {
  Guard guard(mutex_);
  auto found = pages_.find(id);
  if (found == pages_.end()) return false;
  Page& page = *found->second;
  if (!page.block || page.leases || page.ended || page.block->stays || (page.outgoing && !page.copy.done()))
    return false;
  settle(page);
  if (page.write_epoch != recipe->write_epoch() || !can_hold(*recipe) || !drop(guard, page)) return false;
  page.host.reset();
  page.clean = false;
  for (const Recipe::Input& input : recipe->inputs()) ++pages_.at(input.page)->holds;
  page.recipe = std::move(recipe);
  ++stats_.discards;
  return true;
}

void Pager::replay(PageId id) {
  Guard guard(mutex_);
  if (auto found = pages_.find(id); found != pages_.end() && found->second->recipe) restore(guard, *found->second);
}

Page& Pager::held_page(PageId id) {
  std::lock_guard lock(mutex_);
  auto found = pages_.find(id);
  if (found == pages_.end() || found->second->ended)
    throw std::logic_error(str("[pager.replay] page ", id, " is to be read, but is no page any more"));
  return *found->second;
}

bool Pager::can_hold(const Recipe& recipe) {
  return std::all_of(recipe.inputs().begin(), recipe.inputs().end(), [&](const Recipe::Input& input) {
    auto found = pages_.find(input.page);
    if (found == pages_.end()) return false;
    const Page& page = *found->second;
    return !page.ended && page.writers == 0 && page.write_epoch == input.write_epoch;
  });
}

/// The recipe read the pages for the last time; those that were kept for it alone go.
void Pager::release_holds(const Recipe& recipe) noexcept {
  for (const Recipe::Input& input : recipe.inputs()) {
    auto found = pages_.find(input.page);
    if (found == pages_.end()) continue;
    Page* page = found->second.get();
    if (--page->holds == 0 && page->ownerless) end(page);
  }
}

/// The storage is gone, but not what can be made of its bytes: the pager keeps them, on whatever tier.
void Pager::lose_owner(Page& page) noexcept {
  page.owner = std::make_unique<Nobody>();
  page.ownerless = true;
}

/// Before any of the uses is leased, so that a replay has the room that the operator had when it ran first.
void Pager::restore_before_use(Guard& guard, std::span<const PageUse> uses) {
  for (const PageUse& use : uses) {
    if (use.page->recipe) restore(guard, *use.page);
    if (use.write && use.page->holds) restore_readers(guard, use.page->id);
  }
}

/// Before leases are granted: discarded pages are made again, and from here on no recipe may count on the bytes of
/// those that are to be written.
void Pager::prepare(Guard& guard, std::span<const PageUse> uses) {
  for (const PageUse& use : uses) use.page->writers += use.write;
  try {
    restore_before_use(guard, uses);
  } catch (...) {
    end_writes(uses);
    throw;
  }
}

/// Raw writes may have come until now, so the bytes are others only from here on.
void Pager::end_writes(std::span<const PageUse> uses) noexcept {
  for (const PageUse& use : uses) {
    use.page->writers -= use.write;
    use.page->write_epoch += use.write;
  }
}

/// Everything that is to be made again from this page, before its bytes change.
void Pager::restore_readers(Guard& guard, PageId id) {
  for (;;) {
    auto reads = [&](const auto& entry) {
      const Page& page = *entry.second;
      return page.recipe && std::any_of(page.recipe->inputs().begin(), page.recipe->inputs().end(),
                                        [&](const Recipe::Input& input) { return input.page == id; });
    };
    auto reader = std::find_if(pages_.begin(), pages_.end(), reads);
    if (reader == pages_.end()) return;
    restore(guard, *reader->second);
  }
}

void Pager::restore(Guard& guard, Page& page) {
  ++page.leases;  // keeps the record while the lock is given up
  while (page.restoring) {
    guard.lock.unlock();
    std::this_thread::yield();
    guard.lock.lock();
  }
  std::exception_ptr error;
  if (page.recipe && !page.ended) {
    page.restoring = true;
    const double waited = stats_.exposed_seconds + stats_.replay_seconds;
    const auto start = std::chrono::steady_clock::now();
    Block* block = nullptr;
    guard.lock.unlock();
    try {
      block = page.recipe->run(*this);
    } catch (...) {
      error = std::current_exception();
    }
    guard.lock.lock();
    page.restoring = false;
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    stats_.replay_seconds += took.count() - (stats_.exposed_seconds + stats_.replay_seconds - waited);
    if (!error) install(guard, page, block);
  }
  if (page.ended && page.recipe && !page.restoring) {
    release_holds(*page.recipe);
    guard.used_recipes.push_back(std::move(page.recipe));
  }
  if (--page.leases == 0 && page.ended) pages_.erase(page.id);
  if (error) std::rethrow_exception(error);
}

/// The page has its bytes again, as if its operators had just written them.
void Pager::install(Guard& guard, Page& page, Block* block) {
  release_holds(*page.recipe);
  guard.used_recipes.push_back(std::move(page.recipe));
  ++stats_.replays;
  if (page.ended) return device_.free(block);
  device_.recategorize(block, page.category);
  page.block = block;
  page.released = false;
  attach(block, page);
  paged_bytes_ += block->charged_bytes;
  // An owner that dies on another thread says so next, which frees the block.
  if (auto owner = page.owner->keep_alive()) {
    guard.kept.push_back(std::move(owner));
    page.owner->occupy(block);
  }
}

}  // namespace spillway
