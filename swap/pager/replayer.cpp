#include "swap/pager/replayer.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <stdexcept>
#include <utility>

#include "core/error.h"

namespace spillway::swap {

using enum PageState;

bool Replayer::discard(PageId id, std::unique_ptr<ReplayRecipe> recipe) {
  PagerLock lock(table_.mutex());
  Page* page = table_.find(id);
  if (!page || !page->may_leave() || page->is_managed()) return false;
  if (page->is(paging_out) && !page->copy.done()) return false;
  transfer_.poll_page_out(*page);
  if (page->write_epoch != recipe->write_epoch() || !can_hold(*recipe)) return false;
  transfer_.make_dirty(lock, *page);
  if (!evictor_.free_device_bytes(lock, *page, discarded)) return false;
  for (const ReplayRecipe::Input& input : recipe->inputs()) ++table_.find(input.page)->replay_refs;
  page->recipe = std::move(recipe);
  ++table_.stats().discards;
  return true;
}

void Replayer::replay(PageId id) {
  PagerLock lock(table_.mutex());
  if (Page* page = table_.find(id); page && page->recipe) replay(lock, *page);
}

void Replayer::replay_before_use(std::span<const PageUse> uses) {
  PagerLock lock(table_.mutex());
  replay_before_use(lock, uses);
}

Page& Replayer::held_page(PageId id) {
  std::lock_guard lock(table_.mutex());
  Page* page = table_.find(id);
  if (!page || page->is_destroyed())
    throw std::logic_error(str("[pager.replay] page ", id, " is to be read, but is no page any more"));
  return *page;
}

// --- under the lock -------------------------------------------------------------------------------------------------

bool Replayer::can_hold(const ReplayRecipe& recipe) const {
  return std::all_of(recipe.inputs().begin(), recipe.inputs().end(), [&](const ReplayRecipe::Input& input) {
    const Page* page = table_.find(input.page);
    return page && !page->is_destroyed() && page->writers == 0 && page->write_epoch == input.write_epoch;
  });
}

void Replayer::announce(PagerLock& lock, std::span<const PageUse> uses) {
  for (const PageUse& use : uses) use.page->writers += use.write;
  try {
    replay_before_use(lock, uses);
  } catch (...) {
    PageTable::end_writes(uses);
    throw;
  }
}

/// Replays before any of the uses is leased, so that the replays have the room that the operators had at first.
void Replayer::replay_before_use(PagerLock& lock, std::span<const PageUse> uses) {
  for (const PageUse& use : uses) {
    if (use.page->recipe) replay(lock, *use.page);
    if (use.write && use.page->replay_refs) replay_readers(lock, use.page->id);
  }
}

void Replayer::replay_readers(PagerLock& lock, PageId id) {
  while (Page* reader = reader_of(id)) replay(lock, *reader);
}

Page* Replayer::reader_of(PageId id) const {
  for (auto& [number, page] : table_.pages()) {
    if (!page->recipe) continue;
    const auto& inputs = page->recipe->inputs();
    if (std::any_of(inputs.begin(), inputs.end(), [&](const ReplayRecipe::Input& input) { return input.page == id; }))
      return page.get();
  }
  return nullptr;
}

void Replayer::replay(PagerLock& lock, Page& page) {
  const PageHold hold(table_, page);
  while (page.recipe_runs()) PageTransfer::pause(lock);
  if (!page.is(discarded)) return;
  if (const std::exception_ptr error = run_recipe(lock, page)) std::rethrow_exception(error);
}

/// Runs the page's recipe and returns its error. The time that it took counts as replay, but for its own waits and
/// replays.
std::exception_ptr Replayer::run_recipe(PagerLock& lock, Page& page) {
  table_.enter(page, replaying);
  const double delayed = table_.delayed_seconds();
  const auto start = std::chrono::steady_clock::now();
  std::exception_ptr error;
  Block* block = nullptr;
  lock.unlock();
  try {
    block = page.recipe->run(pager_);
  } catch (...) {
    error = std::current_exception();
  }
  lock.relock();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  table_.count_delay(&PagerStats::replay_seconds, took.count() - (table_.delayed_seconds() - delayed));
  if (!error)
    adopt_replayed(lock, page, block);
  else if (page.is_destroyed())
    drop_recipe(lock, page);
  else
    table_.enter(page, discarded);
  return error;
}

void Replayer::drop_recipe(PagerLock& lock, Page& page) {
  table_.release_refs(*page.recipe);
  lock.drop_later(std::move(page.recipe));
}

/// Gives the page its bytes again, as if its operators had just written them.
void Replayer::adopt_replayed(PagerLock& lock, Page& page, Block* block) {
  drop_recipe(lock, page);
  ++table_.stats().replays;
  if (page.is_destroyed()) return device_.free(block);
  device_.recategorize(block, page.category);
  page.priority = EvictionPriority::by_use;
  table_.enter(page, resident_dirty, block);
  PageTable::attach(block, page, keeper_);
  if (page.is_orphan()) return;
  // When another thread destroys the owner, that thread says so next, which frees the block.
  if (auto owner = page.owner->keep_alive()) {
    lock.drop_later(std::move(owner));
    page.owner->occupy(block);
  }
}

}  // namespace spillway::swap
