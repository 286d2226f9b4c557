/// The record of one paged storage: where its bytes are, and who uses them.
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

namespace spillway {

class Pager;
struct Page;

/// The holder of a pointer to a page's bytes: a StorageImpl, or a buffer in a test. Called with the pager's lock held,
/// only for pages that nobody leases; must not call back into the pager.
class PageOwner {
 public:
  virtual ~PageOwner() = default;
  /// Keeps the owner alive while the result lives; nullptr when another thread is destroying it. Dropped without the
  /// pager's lock, because that may end the owner.
  virtual std::shared_ptr<void> keep_alive() = 0;
  /// The bytes are leaving the device: the owner's pointer becomes null, and the page's to release.
  virtual void vacate(Page& page) = 0;
  /// The bytes are back, in `block`, which the owner now holds.
  virtual void occupy(Block* block) = 0;
};

/// Makes a page's bytes again from those of other pages.
class ReplayRecipe {
 public:
  struct Input {
    PageId page;
    uint64_t write_epoch;  ///< of the bytes that it read
  };
  virtual ~ReplayRecipe() = default;
  /// Every page that it reads, each once.
  virtual const std::vector<Input>& inputs() const = 0;
  /// The page's write epoch when its bytes were those that the recipe makes.
  virtual uint64_t write_epoch() const = 0;
  /// Returns a block with the bytes, which becomes the page's. Called without the pager's lock; leases its inputs
  /// meanwhile. The inputs are alive and unchanged. Throws OutOfBudget, or what the operators throw.
  virtual Block* run(Pager& pager) = 0;
};

/// The place of a page's bytes. PageTable::enter() refuses every change that is not in this table:
///
///     from            to              when
///     (new)           resident_dirty  a storage is registered
///     (new)           absent          a result is born in the host tier
///     resident_dirty  paging_out      a copy to the host begins
///     resident_dirty  discarded       the bytes are dropped, because a recipe makes them again
///     resident_clean  resident_dirty  somebody may write them, or another page needs the host copy's room
///     resident_clean  absent          the device bytes are freed
///     resident_clean  discarded       as above
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

/// One storage. A page belongs to its block (or, while absent, to the owner's null pointer), so it is destroyed when
/// the storage dies, is resized or is given other memory, on whatever thread that happens. Fields are the pager's,
/// under its lock.
struct Page {
  PageId id = 0;
  int64_t bytes = 0;  ///< of data
  Category category = Category::other;
  std::unique_ptr<PageOwner> owner;  ///< null: the storage is gone, but recipes read the page
  UserId user = kNobody;             ///< whose operator used it last

  /// Device bytes where there are any: resident, being copied out, or being filled by a copy in. Managed memory: always
  /// the same block, not charged while absent.
  Block* block = nullptr;
  HostCopy host{};                       ///< equal when clean or absent; being filled while paging_out
  Ticket copy;                           ///< of the page-out or page-in under way
  std::unique_ptr<ReplayRecipe> recipe;  ///< while discarded or replaying; destroyed: while it still runs

  int32_t leases = 0;        ///< keep the record, and resident bytes where they are
  int32_t writers = 0;       ///< write leases, from before they are granted: raw writes may come until they end
  int32_t host_pins = 0;     ///< of the leases, those that use the host copy: the page stays absent
  int32_t replay_refs = 0;   ///< recipes of discarded pages that read this one
  uint64_t write_epoch = 0;  ///< write leases that have ended
  PageUseTime use;
  EvictionPriority priority = EvictionPriority::by_use;

  PageState state() const noexcept { return state_; }
  bool is(PageState state) const noexcept { return state_ == state; }
  bool is_managed() const noexcept { return block && block->is_managed; }
  /// The bytes are on the device now, though perhaps leaving.
  bool on_device() const noexcept { return state_ <= PageState::paging_out; }
  /// Operators may use the bytes: they are on the device and no copy takes them away.
  bool is_usable() const noexcept { return on_device() && !(is(PageState::paging_out) && is_managed()); }
  bool is_destroyed() const noexcept { return is(PageState::destroyed); }
  bool is_orphan() const noexcept { return !owner; }
  /// Also after the storage died under it.
  bool recipe_runs() const noexcept { return is(PageState::replaying) || (is_destroyed() && recipe); }
  /// Its bytes are in the host tier and nothing keeps them from coming.
  bool may_page_in() const noexcept { return is(PageState::absent) && host_pins == 0; }
  /// Its bytes are on the device and nobody uses them.
  bool may_leave() const noexcept { return on_device() && leases == 0; }

 private:
  friend class PageTable;
  PageState state_ = PageState::resident_dirty;
};

/// A use that leaves the page's next use as it is.
inline constexpr int64_t kNextUseKept = -1;

struct PageUse {
  Page* page;
  bool write;
  int64_t next_use = kNextUseUnknown;  ///< what the page gets when the lease ends
};

}  // namespace spillway
