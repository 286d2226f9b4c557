/// Pages that are discarded without a copy and made again from other pages.
#pragma once
#include <exception>
#include <memory>
#include <span>

#include "core/memory/device_memory.h"
#include "swap/pager/evictor.h"
#include "swap/pager/page_table.h"
#include "swap/pager/page_transfer.h"

namespace spillway::swap {

class Pager;

/// Discards pages and makes them again. Inputs of a recipe keep their bytes, on any tier, until it has run, also when
/// their owners die. They do not change before, because a caller that is about to write one has its readers replayed
/// first.
class Replayer {
 public:
  /// Makes a replayer. `pager` and `keeper` are the same object; recipes lease their inputs from it.
  Replayer(PageTable& table, PageTransfer& transfer, Evictor& evictor, DeviceMemory& device, Pager& pager,
           PageKeeper& keeper)
      : table_(table), transfer_(transfer), evictor_(evictor), device_(device), pager_(pager), keeper_(keeper) {}
  Replayer(const Replayer&) = delete;
  Replayer& operator=(const Replayer&) = delete;

  // For schedules and recipes. These functions take the lock.

  /// Drops a resident page without keeping a copy. `recipe` makes it again when it is leased next, or before a page
  /// that the recipe reads is written. Returns false, and does nothing, when the page is leased, being copied, gone
  /// or managed memory.
  /// It does so too when the page or an input was written since, or may be written now.
  bool discard(PageId id, std::unique_ptr<ReplayRecipe> recipe);
  /// Makes a discarded page again now. Does nothing for other pages. Throws as Pager::lease().
  void replay(PageId id);
  /// Makes again the pages that are discarded, and the readers of those that are written, as Pager::lease() does.
  /// Called before the operator holds anything. Throws as Pager::lease().
  void replay_before_use(std::span<const PageUse> uses);
  /// Returns a page that a recipe holds. Throws std::logic_error when it is no page.
  Page& held_page(PageId id);

  // Under the lock, which is given up while a recipe runs.

  /// Prepares leases before they are granted. Discarded pages are made again, and from here on no recipe may count on
  /// the bytes of pages that are to be written.
  void announce(PagerLock& lock, std::span<const PageUse> uses);
  void replay(PagerLock& lock, Page& page);
  /// Replays every page that is to be made from this one, before its bytes change.
  void replay_readers(PagerLock& lock, PageId id);

 private:
  void replay_before_use(PagerLock& lock, std::span<const PageUse> uses);
  bool can_hold(const ReplayRecipe& recipe) const;
  Page* reader_of(PageId id) const;
  std::exception_ptr run_recipe(PagerLock& lock, Page& page);
  void adopt_replayed(PagerLock& lock, Page& page, Block* block);
  void drop_recipe(PagerLock& lock, Page& page);

  PageTable& table_;
  PageTransfer& transfer_;
  Evictor& evictor_;
  DeviceMemory& device_;
  Pager& pager_;
  PageKeeper& keeper_;
};

}  // namespace spillway::swap
