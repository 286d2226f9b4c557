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
  int64_t charged_bytes;            ///< bytes that the ledger holds for it
  std::atomic<PageKeeper*> keeper;  ///< its page's keeper; nullptr while no page is registered for the block
  void* page;                       ///< the page, for the keeper's use
  Category category;
  bool is_managed =
      false;  ///< managed memory: the address serves host and device, so the owner keeps it wherever the bytes are

  static Block* of(void* data) noexcept { return reinterpret_cast<Block*>(static_cast<char*>(data) - sizeof(Block)); }
};
static_assert(sizeof(Block) == 64);

/// An object that can make room when a charge does not fit. The Pager is one.
class Reclaimer {
 public:
  virtual ~Reclaimer() = default;
  /// Frees device bytes so that a charge of `bytes` may succeed. May block on copies. The caller retries. Throws
  /// OutOfBudget when nothing can be freed.
  virtual void reclaim(int64_t bytes) = 0;
  /// Frees memory when the device has none for `bytes` although the budget allows them. May block on copies. Returns
  /// true when some memory was freed, so that trying again may help.
  virtual bool free_physical_memory(int64_t /*bytes*/) { return false; }
};

/// An object that keeps pages for blocks, and is told when such a block is released. The Pager is one. Several keepers
/// may keep pages of one device, while at most one of them reclaims.
class PageKeeper {
 public:
  virtual ~PageKeeper() = default;
  /// Takes over a block that its owner released and whose page is kept here. Called on any thread, also under the
  /// caller's locks; must not throw. The keeper frees the block, at once or when no copy uses it any more. It does so
  /// also for a block whose page was unregistered meanwhile.
  virtual void on_block_released(Block* block) noexcept = 0;
};

/// The source of a device's memory. Thread-safe.
class BlockSource {
 public:
  virtual ~BlockSource() = default;
  /// Returns a block whose data are the `charge` bytes minus the descriptor's; nullptr when the device has no such
  /// memory. May throw, and then holds no memory.
  [[nodiscard]] virtual Block* try_acquire(int64_t charge, Category category) = 0;
  virtual void return_block(Block* block) noexcept = 0;
};

/// Host memory from an arena, where a block's descriptor lies in front of its data.
class ArenaBlocks final : public BlockSource {
 public:
  explicit ArenaBlocks(Arena& arena) : arena_(arena) {}
  Block* try_acquire(int64_t charge, Category category) override;
  void return_block(Block* block) noexcept override;

 private:
  Arena& arena_;
};

/// Memory whose blocks are charged to a ledger: a decorator that adds the budget to a source of blocks. Thread-safe.
class DeviceMemory {
 public:
  DeviceMemory(Arena& arena, Ledger& ledger) : arena_(&arena), in_arena_(arena), source_(*in_arena_), ledger_(ledger) {}
  DeviceMemory(BlockSource& source, Ledger& ledger) : source_(source), ledger_(ledger) {}
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  /// Returns a block of at least `bytes`, uninitialized, 64-byte aligned. Asks the reclaimer while the charge does not
  /// fit. This is the only place that retries when memory runs out. Throws OutOfBudget when the budget is exhausted.
  /// Throws OutOfMemory when the device itself has no memory, or for more than 2^62 bytes. Throws the source's
  /// exceptions too. Nothing stays charged after an exception.
  Block* allocate(int64_t bytes, Category category);
  /// Allocates as allocate() does, but returns nullptr when the charge does not fit the budget, without asking the
  /// reclaimer. Throws OutOfMemory.
  [[nodiscard]] Block* try_allocate(int64_t bytes, Category category);
  /// Releases a block for its owner: frees it, or hands it to the keeper of the page that is registered for it.
  void release(Block* block) noexcept;
  /// Returns the block to its source and its charge to the ledger.
  void free(Block* block) noexcept;
  void recategorize(Block* block, Category category) noexcept;
  /// Stops counting a managed block, whose bytes are leaving the device while its owner keeps it.
  void uncharge(Block* block) noexcept { ledger_.refund(block->charged_bytes, block->category); }
  /// Counts an uncharged block again, as `category`. Returns false, changing nothing, when the charge does not fit.
  [[nodiscard]] bool try_recharge(Block* block, Category category) noexcept;
  /// Returns an uncharged block to its source.
  void free_uncharged(Block* block) noexcept { source_.return_block(block); }
  /// Charges device bytes that libraries hold outside of this memory, as Category::other. Asks the reclaimer and throws
  /// as allocate() does.
  void charge_external(int64_t bytes);
  /// Gives back the charge for `bytes`, or for all that charge_external() charged where that is less.
  void refund_external(int64_t bytes) noexcept;
  /// Returns the bytes that charge_external() charged and that were not given back.
  int64_t external_bytes() const noexcept { return external_bytes_; }

  /// Returns the charge for a request of `bytes`: rounded up to 64, plus the descriptor.
  static int64_t charge_of(int64_t bytes) noexcept { return round_up(bytes, Arena::kAlignment) + sizeof(Block); }

  Ledger& ledger() noexcept { return ledger_; }
  /// Returns true when the host itself reads and writes the bytes, and runs the operators on them.
  bool is_host() const noexcept { return arena_ != nullptr; }
  /// Returns the arena; only for memory that was made of one.
  Arena& arena() noexcept { return *arena_; }
  /// Sets the reclaimer. With nullptr, charges that do not fit throw at once. Returns when no thread is inside a
  /// reclaimer or keeper any more. So the former reclaimer may be destroyed once it keeps no pages. No thread may be
  /// stuck inside one.
  void set_reclaimer(Reclaimer* reclaimer) noexcept;
  bool has_reclaimer() const noexcept { return reclaimer_ != nullptr; }

  /// Makes sure, around fork() (core/memory/fork.h), that no other thread holds a lock that the child needs.
  void lock_for_fork();
  void unlock_after_fork();
  /// Makes the budget unlimited in a child of fork(), where no reclaimer or keeper has its threads. Blocks that have a
  /// page are not given back there.
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
  std::atomic<int64_t> external_bytes_ = 0;
  std::atomic<int64_t> callers_ = 0;  // threads that may be inside a reclaimer or keeper
};

}  // namespace spillway
