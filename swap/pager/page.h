/// The record of one paged storage: the place of its bytes, and its users.
#pragma once
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "core/category.h"
#include "core/ids.h"
#include "core/memory/device_memory.h"
#include "core/timeline.h"
#include "swap/pager/eviction_order.h"
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

/// Makes a page's bytes again from those of other pages.
class ReplayRecipe {
 public:
  struct Input {
    PageId page;
    uint64_t write_epoch;  ///< write epoch of the bytes that the recipe read
  };
  virtual ~ReplayRecipe() = default;
  /// Returns every page that the recipe reads, each once.
  virtual const std::vector<Input>& inputs() const = 0;
  /// Returns the page's write epoch when its bytes were those that the recipe makes.
  virtual uint64_t write_epoch() const = 0;
  /// Returns a block with the bytes, which becomes the page's. Called without the pager's lock; leases its inputs
  /// meanwhile. The inputs are alive and unchanged. Throws OutOfBudget, or the operators' errors.
  virtual Block* run(Pager& pager) = 0;
};

/// The place of a page's bytes. PageTable::enter() refuses every change that is not in this table:
///
///     from            to              when
///     (new)           resident_dirty  a storage is registered
///     (new)           absent          a result is born in the host tier
///     resident_dirty  paging_out      a copy to the host begins
///     resident_dirty  discarded       the bytes are dropped, because a recipe makes them again
///     resident_clean  resident_dirty  a user may write them, or another page needs the host copy's room
///     resident_clean  absent          the device bytes are freed
///     resident_clean  discarded       the bytes are dropped, because a recipe makes them again
///     paging_out      resident_clean  the copy is done
///     paging_out      resident_dirty  the copy failed
///     paging_out      absent          the copy of managed memory is done: it takes the bytes away
///     absent          paging_in       a copy to the device begins
///     paging_in       resident_clean  the copy is done
///     paging_in       resident_dirty  the copy of managed memory is done
///     paging_in       absent          the copy failed, or could not begin
///     discarded       replaying       the recipe runs
///     replaying       resident_dirty  it made the bytes
///     replaying       discarded       it failed
///     any             destroyed       the storage died, or is no page any more
enum class PageState : uint8_t {
  resident_dirty,  ///< on the device alone
  resident_clean,  ///< on the device, and the host copy is equal
  paging_out,      ///< on the device; a copy to the host is under way, or done and not yet noticed
  absent,          ///< in the host tier; managed memory: on the host, at the same address
  paging_in,       ///< in the host tier; a copy to the device is under way, or done and not yet noticed
  discarded,       ///< nowhere; the recipe can make them
  replaying,       ///< nowhere; the recipe runs
  destroyed        ///< nowhere; the record is kept until its leases end
};
std::string_view name(PageState state) noexcept;
bool may_follow(PageState from, PageState to) noexcept;

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
  bool on_device() const noexcept { return state_ <= PageState::paging_out; }
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
