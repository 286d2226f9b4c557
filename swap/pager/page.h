/// One storage's bytes, wherever they are.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "core/ids.h"
#include "core/memory/device_memory.h"
#include "core/timeline.h"
#include "swap/tiers/host_tier.h"

namespace spillway {

class Pager;
struct Page;

/// Whoever looks at a page's bytes through a pointer (a StorageImpl, a buffer in a test). Called with the pager's lock
/// held, only for pages that nobody leases; must not call back into the pager.
class PageOwner {
 public:
  virtual ~PageOwner() = default;
  /// Keeps the owner alive while the result lives; nullptr when another thread is destroying it. Dropped without the
  /// pager's lock, since that may end the owner.
  virtual std::shared_ptr<void> keep_alive() = 0;
  /// The bytes are leaving the device: the owner's pointer becomes null, and the page's to release.
  virtual void vacate(Page& page) = 0;
  /// The bytes are back, in `block`, which the owner now holds.
  virtual void occupy(Block* block) = 0;
};

/// How to make a page's bytes again from those of other pages.
class Recipe {
 public:
  struct Input {
    PageId page;
    uint64_t write_epoch;  ///< of the bytes that it read
  };
  virtual ~Recipe() = default;
  /// Every page that it reads, each once.
  virtual const std::vector<Input>& inputs() const = 0;
  /// The page's write epoch when its bytes were those that the recipe makes.
  virtual uint64_t write_epoch() const = 0;
  /// A block with the bytes, which becomes the page's. Called without the pager's lock; leases what it reads meanwhile.
  /// The inputs are alive and unchanged. Throws OutOfBudget, or what the operators throw.
  virtual Block* run(Pager& pager) = 0;
};

/// The record of one paged storage. A page belongs to its block (or, while absent, to the owner's null pointer), so it
/// ends when the storage dies, is resized or is given other memory, on whatever thread that happens.
/// Fields are the pager's, under its lock.
struct Page {
  PageId id = 0;
  int64_t bytes = 0;          ///< of data
  Block* block = nullptr;     ///< device bytes; nullptr while absent
  HostCopy host{};            ///< host copy, if any; meaningful when clean or while `outgoing` runs
  Block* incoming = nullptr;  ///< device bytes that a page-in is filling
  Block* parked = nullptr;    ///< while absent: the block, if it stays with its owner (Block::stays)
  Ticket copy;                ///< of the page-out or page-in under way
  bool outgoing = false;      ///< a page-out is under way (or done and not yet noticed)
  bool clean = false;         ///< the host copy equals the device bytes
  bool ended = false;         ///< the storage is gone; kept only until its leases end
  int32_t leases = 0;
  int32_t writers = 0;  ///< write leases, from before they are granted: raw writes may come until they end
  int32_t away = 0;     ///< of the leases, those that use the host copy: the page stays absent, its host copy in place
  Category category = Category::other;
  uint64_t write_epoch = 0;  ///< write leases that have ended
  uint64_t last_use = 0;
  int64_t next_use = kNextUseUnknown;  ///< operator clock of the next use, when a schedule knows it
  bool released = false;               ///< it leaves before all others, whatever its next use
  std::unique_ptr<PageOwner> owner;
  UserId user = kNobody;  ///< whose operator used it last

  PageUseTime use_time() const noexcept { return {next_use, last_use}; }
  int64_t next_use_for_eviction() const noexcept { return released ? kNextUseUnknown : next_use; }

  std::unique_ptr<Recipe> recipe;  ///< while the page is discarded: its bytes are nowhere, but can be made again
  bool restoring = false;          ///< the recipe runs
  int32_t holds = 0;               ///< recipes of discarded pages that read this one
  bool ownerless = false;          ///< the storage is gone, but recipes read the page
};

}  // namespace spillway
