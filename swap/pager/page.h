/// The record of one paged storage: the place of its bytes, and its users.
#pragma once
#include <cstdint>
#include <memory>

#include "core/category.h"
#include "core/ids.h"
#include "core/memory/device_memory.h"
#include "core/timeline.h"
#include "swap/pager/eviction_order.h"
#include "swap/pager/page_state.h"
#include "swap/pager/replay_recipe.h"
#include "swap/tiers/host_copy.h"

namespace spillway::swap {

class Pager;
struct Page;

/// The holder of a pointer to a page's bytes: a StorageImpl, or a buffer in a test. Called with the pager's lock held,
/// only for pages that are not leased; must not call back into the pager.
class PageOwner {
 public:
  virtual ~PageOwner() = default;
  /// Keeps the owner alive while the result lives; nullptr when another thread is destroying it. Dropped without the
  /// pager's lock, because that may end the owner.
  virtual std::shared_ptr<void> keep_alive() = 0;
  /// Makes the owner's pointer null, because the bytes are leaving the device. The page releases that pointer from now
  /// on.
  virtual void vacate(Page& page) = 0;
  /// Gives the owner the bytes back, in `block`, which the owner now holds.
  virtual void occupy(Block* block) = 0;
};

/// The record of one storage. A page belongs to its block (or, while absent, to the owner's null pointer). So it is
/// destroyed when the storage dies, is resized or is given other memory, on any thread. The pager owns the fields,
/// under its lock.
struct Page {
  PageId id = 0;
  int64_t bytes = 0;  ///< data bytes
  Category category = Category::other;
  std::unique_ptr<PageOwner> owner;  ///< null: the storage is gone, but recipes read the page
  UserId user = kNobody;             ///< the user whose operator used it last

  /// The block of the device bytes where there are any: resident, being copied out, or being filled by a copy in.
  /// Managed memory always has the same block, which is not charged while absent.
  Block* block = nullptr;
  HostCopy host{};                       ///< equal when clean or absent; being filled while paging_out
  Ticket copy;                           ///< ticket of the page-out or page-in under way
  std::unique_ptr<ReplayRecipe> recipe;  ///< while discarded or replaying; destroyed: while it still runs

  int32_t leases = 0;        ///< uses that keep the record, and resident bytes where they are
  int32_t writers = 0;       ///< write leases, from before they are granted: raw writes may come until they end
  int32_t host_pins = 0;     ///< leases that use the host copy: the page stays absent
  int32_t replay_refs = 0;   ///< recipes of discarded pages that read this one
  uint64_t write_epoch = 0;  ///< write leases that have ended
  PageUseTime use;
  EvictionPriority priority = EvictionPriority::by_use;

  PageState state() const noexcept { return state_; }
  bool is(PageState state) const noexcept { return state_ == state; }
  bool is_managed() const noexcept { return block && block->is_managed; }
  /// True when the bytes are on the device now, though perhaps leaving.
  bool on_device() const noexcept { return is_on_device(state_); }
  /// True when operators may use the bytes: they are on the device and no copy takes them away.
  bool is_usable() const noexcept { return on_device() && !(is(PageState::paging_out) && is_managed()); }
  bool is_destroyed() const noexcept { return is(PageState::destroyed); }
  bool is_orphan() const noexcept { return !owner; }
  /// True while the recipe runs, also after the storage died under it.
  bool recipe_runs() const noexcept { return is(PageState::replaying) || (is_destroyed() && recipe); }
  /// True when the bytes are in the host tier and nothing keeps them from coming.
  bool may_page_in() const noexcept { return is(PageState::absent) && host_pins == 0; }
  /// True when the bytes are on the device and not leased.
  bool may_leave() const noexcept { return on_device() && leases == 0; }

 private:
  friend class PageTable;
  PageState state_ = PageState::resident_dirty;
};

/// The next use of a PageUse that leaves the page's next use as it is.
inline constexpr int64_t kNextUseKept = -1;

struct PageUse {
  Page* page;
  bool write;
  int64_t next_use = kNextUseUnknown;  ///< the page's next use when the lease ends
};

}  // namespace spillway::swap
