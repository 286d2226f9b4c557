/// Device memory whose every block is charged to a Ledger.
#pragma once
#include <atomic>
#include <cstdint>
#include <optional>

#include "core/category.h"
#include "core/ledger.h"
#include "core/memory/arena.h"

namespace spillway {

class PageKeeper;

/// One allocation of a device. The descriptor lives on the host; on the CPU it is the 64 bytes in front of the data.
struct alignas(64) Block {
  void* data;
  int64_t charged_bytes;            ///< what the ledger holds for it
  std::atomic<PageKeeper*> keeper;  ///< of the block's page; nullptr while no page is registered for the block
  void* page;                       ///< the keeper's
  Category category;
  bool is_managed =
      false;  ///< managed memory: the address serves host and device, so the owner keeps it wherever bytes are

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
  /// The device has no memory for `bytes` although the budget allows them. True when some was freed, blocking on
  /// copies, so that trying again may help.
  virtual bool free_physical_memory(int64_t /*bytes*/) { return false; }
};

/// Keeps pages for blocks, and hears when such a block is released. The Pager is one; several may keep pages of one
/// device, while at most one of them reclaims.
class PageKeeper {
 public:
  virtual ~PageKeeper() = default;
  /// A block whose page is kept here was released by its owner. Any thread, also under the caller's locks; must not
  /// throw. The keeper frees the block, at once or when no copy uses it any more; one that it forgot meanwhile too.
  virtual void on_block_released(Block* block) noexcept = 0;
};

/// Where a device's memory comes from. Thread-safe.
class BlockSource {
 public:
  virtual ~BlockSource() = default;
  /// A block whose data are the `charge` bytes without the descriptor's; nullptr when the device has no such memory.
  /// May throw, and then holds none.
  [[nodiscard]] virtual Block* try_take(int64_t charge, Category category) = 0;
  virtual void give_back(Block* block) noexcept = 0;
};

/// Memory of the host: the descriptor lies in front of the data, in an arena.
class ArenaBlocks final : public BlockSource {
 public:
  explicit ArenaBlocks(Arena& arena) : arena_(arena) {}
  Block* try_take(int64_t charge, Category category) override;
  void give_back(Block* block) noexcept override;

 private:
  Arena& arena_;
};

/// Memory whose blocks are charged to a ledger: the budget as a decorator of their source. Thread-safe.
class DeviceMemory {
 public:
  DeviceMemory(Arena& arena, Ledger& ledger) : arena_(&arena), in_arena_(arena), source_(*in_arena_), ledger_(ledger) {}
  DeviceMemory(BlockSource& source, Ledger& ledger) : source_(source), ledger_(ledger) {}
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  /// A block of at least `bytes`, uninitialised, 64-byte aligned. Asks the reclaimer while the charge does not fit: the
  /// only place where running out is retried. Throws OutOfBudget; std::bad_alloc when the device itself is out, or for
  /// more than 2^62 bytes; what the source throws. Nothing stays charged then.
  Block* allocate(int64_t bytes, Category category);
  /// nullptr when the charge does not fit the budget; asks nobody. Throws std::bad_alloc.
  [[nodiscard]] Block* try_allocate(int64_t bytes, Category category);
  /// The owner lets go of a block: freed, or handed to the keeper of the page that is registered for it.
  void release(Block* block) noexcept;
  /// Returns the block to its source and its charge to the ledger.
  void free(Block* block) noexcept;
  void recategorize(Block* block, Category category) noexcept;
  /// Stops counting a managed block, whose bytes are leaving the device while its owner keeps it.
  void uncharge(Block* block) noexcept { ledger_.refund(block->charged_bytes, block->category); }
  /// Counts it again, as `category`. False, changing nothing, when that does not fit.
  [[nodiscard]] bool try_recharge(Block* block, Category category) noexcept;
  /// Returns an uncharged block to its source.
  void free_uncharged(Block* block) noexcept { source_.give_back(block); }
  /// Charges what others hold of the device, as allocate() does; it is given back by the ledger's refund.
  void charge(int64_t bytes, Category category);

  /// What a request of `bytes` is charged: rounded to 64, plus the descriptor.
  static int64_t charge_of(int64_t bytes) noexcept { return round_up(bytes, Arena::kAlignment) + sizeof(Block); }

  Ledger& ledger() noexcept { return ledger_; }
  /// Whether the host reads and writes its bytes itself, and runs the operators on them.
  bool is_host() const noexcept { return arena_ != nullptr; }
  /// Of memory that was made of an arena.
  Arena& arena() noexcept { return *arena_; }
  /// nullptr: charges that do not fit throw at once. Returns when no thread is inside a reclaimer or keeper any more,
  /// so that the former one may end once it keeps no pages; no thread may be stuck there.
  void set_reclaimer(Reclaimer* reclaimer) noexcept;
  bool has_reclaimer() const noexcept { return reclaimer_ != nullptr; }

  /// Around fork() (core/memory/fork.h): no other thread holds a lock that the child needs.
  void lock_for_fork();
  void unlock_after_fork();
  /// In a child of fork(), where no reclaimer or keeper has its threads: the budget is unlimited, and blocks that have
  /// a page are not given back.
  void orphan() noexcept;
  bool is_orphan() const noexcept { return orphaned_; }

 private:
  struct Caller;
  static void require_sane(int64_t bytes);
  void ask_for(int64_t charge);

  Arena* const arena_ = nullptr;
  std::optional<ArenaBlocks> in_arena_;
  BlockSource& source_;
  Ledger& ledger_;
  std::atomic<Reclaimer*> reclaimer_ = nullptr;
  std::atomic<bool> orphaned_ = false;
  std::atomic<int64_t> callers_ = 0;  // threads that may be inside a reclaimer or keeper
};

}  // namespace spillway
