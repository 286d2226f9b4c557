/// Device memory whose every block is charged to a Ledger.
#pragma once
#include <atomic>
#include <cstdint>

#include "core/arena.h"
#include "core/category.h"
#include "core/ledger.h"

namespace spillway {

class PageKeeper;

/// One allocation of a device. The descriptor lives on the host; on the CPU it is the 64 bytes in front of the data.
struct alignas(64) Block {
  void* data;
  int64_t charged_bytes;            ///< what the ledger holds for it
  std::atomic<PageKeeper*> keeper;  ///< of the block's page; nullptr while no page is registered for the block
  void* page;                       ///< the keeper's
  Category category;

  static Block* of(void* data) noexcept { return reinterpret_cast<Block*>(static_cast<char*>(data) - sizeof(Block)); }
};
static_assert(sizeof(Block) == 64);

/// What can make room when a charge does not fit. The Pager is one.
class Reclaimer {
 public:
  virtual ~Reclaimer() = default;
  /// Frees device bytes so that a charge of `bytes` may succeed; may block on copies. The caller retries.
  /// Throws OutOfBudget when nothing can be freed.
  virtual void reclaim(int64_t bytes) = 0;
};

/// Keeps pages for blocks, and hears when such a block is released. The Pager is one; several may keep pages of one
/// device, while at most one of them reclaims.
class PageKeeper {
 public:
  virtual ~PageKeeper() = default;
  /// A block whose page is kept here was released by its owner. Any thread, also under the caller's locks; must not
  /// throw. The keeper frees the block, at once or when no copy uses it any more; one that it forgot meanwhile too.
  virtual void released(Block* block) noexcept = 0;
};

/// An arena whose blocks are charged to a ledger: the budget as a decorator of the arena. Thread-safe.
class DeviceMemory {
 public:
  DeviceMemory(Arena& arena, Ledger& ledger) : arena_(arena), ledger_(ledger) {}
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  /// A block of at least `bytes`, uninitialised, 64-byte aligned. Asks the reclaimer while the charge does not fit: the
  /// only place where running out is retried. Throws OutOfBudget; std::bad_alloc when the machine itself is out.
  Block* allocate(int64_t bytes, Category category);
  /// nullptr when the charge does not fit the budget; asks nobody.
  [[nodiscard]] Block* try_allocate(int64_t bytes, Category category);
  /// The owner lets go of a block: freed, or handed to the keeper of the page that is registered for it.
  void release(Block* block) noexcept;
  /// Returns the block to the arena and its charge to the ledger.
  void free(Block* block) noexcept;
  void recategorize(Block* block, Category category) noexcept;

  /// What a request of `bytes` is charged: rounded to 64, plus the descriptor.
  static int64_t charge_of(int64_t bytes) noexcept { return round_up(bytes, Arena::kAlignment) + sizeof(Block); }

  Ledger& ledger() noexcept { return ledger_; }
  Arena& arena() noexcept { return arena_; }
  /// nullptr: charges that do not fit throw at once. Returns when no thread is inside a reclaimer or keeper any more,
  /// so that the former one may end once it keeps no pages; no thread may be stuck there.
  void set_reclaimer(Reclaimer* reclaimer) noexcept;

 private:
  struct Caller;

  Arena& arena_;
  Ledger& ledger_;
  std::atomic<Reclaimer*> reclaimer_ = nullptr;
  std::atomic<int64_t> callers_ = 0;  // threads that may be inside a reclaimer or keeper
};

}  // namespace spillway
