/// The records of a pager's pages, the users of the pages, and the lock of both.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/memory/device_memory.h"
#include "swap/pager/page.h"
#include "swap/pager/pager_stats.h"
#include "swap/tiers/host_tier.h"

namespace spillway::swap {

/// The pager's lock, and the objects that are dropped after it: owners and recipes, because their end may call the
/// pager.
class PagerLock {
 public:
  explicit PagerLock(std::mutex& mutex) : lock_(mutex) {}
  void drop_later(std::shared_ptr<void> owner) { owners_.push_back(std::move(owner)); }
  void drop_later(std::unique_ptr<ReplayRecipe> recipe) { recipes_.push_back(std::move(recipe)); }
  void unlock() { lock_.unlock(); }
  void relock() { lock_.lock(); }

 private:
  std::vector<std::shared_ptr<void>> owners_;
  std::vector<std::unique_ptr<ReplayRecipe>> recipes_;
  std::unique_lock<std::mutex> lock_;
};

/// Every page by its number. The functions for users take the lock; the others are called under it.
class PageTable {
 public:
  PageTable(DeviceMemory& device, HostTier& host) : device_(device), host_(host) {}
  /// Waits for copies that use the blocks of destroyed pages.
  ~PageTable();
  PageTable(const PageTable&) = delete;
  PageTable& operator=(const PageTable&) = delete;

  // For users. These functions take the lock. Thread-safe.

  /// Adds a user. Users share the pages' memory, and may share pages.
  UserId add_user();
  void remove_user(UserId user) noexcept;
  int64_t users() const;
  /// Notes when the page is used next, which also ends evict_first(). Does nothing when there is no such page.
  void set_next_use(Page& page, int64_t next_use);
  void set_next_use(PageId id, int64_t next_use);
  /// Lets the page leave before all others, until it is used again or has left.
  void evict_first(PageId id);
  /// Forgets the next uses of the pages that `user` used last.
  void forget_next_uses(UserId user);
  /// Calls `visit` for every page that `user` used last.
  template <class Visit>
  void for_each_of(UserId user, Visit&& visit) {
    std::lock_guard lock(mutex_);
    for (auto& [id, page] : pages_) {
      if (page->user != user) continue;
      visit(*page);
      tell_use(*page);
    }
  }
  /// Calls `look` while no owner's pointer changes, and returns its result. Used to find the page of an owner that
  /// other threads may page out.
  template <class Look>
  auto locked(Look&& look) {
    std::lock_guard lock(mutex_);
    return look();
  }
  /// Records, from now on, which pages are destroyed, whichever user used them.
  void watch_destroyed(UserId user);
  /// Appends the pages that were recorded since the last call to `destroyed`, and forgets them. Cost when no page was
  /// destroyed: one load.
  void take_destroyed(UserId user, std::vector<PageId>& destroyed);
  void stop_watching(UserId user) noexcept;
  /// Counts an operator that some user traces, and returns how many were counted before. This is the clock of next
  /// uses.
  int64_t tick() noexcept { return ticks_.fetch_add(1); }
  int64_t ticks() const noexcept { return ticks_.load(); }
  /// Returns the device bytes held by pages, including pages on their way in or out and copies that outlive their page.
  /// Takes no lock.
  int64_t paged_bytes() const noexcept { return paged_bytes_.load(std::memory_order_relaxed); }
  /// Returns the seconds that callers have waited so far, for copies and for replays. Takes no lock.
  double delayed_seconds() const noexcept { return delayed_seconds_.load(std::memory_order_relaxed); }

  // Records, under the lock.

  std::mutex& mutex() const noexcept { return mutex_; }
  PagerStats& stats() noexcept { return stats_; }
  const PagerStats& stats() const noexcept { return stats_; }
  /// Counts seconds that a caller waited, in `counter`: exposed or replay.
  void count_delay(double PagerStats::*counter, double seconds) noexcept;
  /// Describes the held bytes that belong to no page, so they cannot leave: `; 1.20 GiB of them belong to no page
  /// (workspace 1.20 GiB)`. Empty when there are none. Cost: a look at every page.
  std::string describe_unpaged() const;

  /// Makes the record of a page that was used just now.
  std::unique_ptr<Page> make_page(int64_t bytes, Category category, std::unique_ptr<PageOwner> owner, UserId user);
  /// Registers a page that has its bytes in `block`, or is absent where `block` is null.
  Page* add(std::unique_ptr<Page> page, Block* block, PageKeeper& keeper);
  /// Returns the page; nullptr where there is no such page. May return a destroyed one.
  Page* find(PageId id) const;
  const std::unordered_map<PageId, std::unique_ptr<Page>>& pages() const noexcept { return pages_; }

  /// Moves the page to `state`, with `block`, and keeps the totals. Throws std::logic_error where the table of states
  /// does not allow it.
  void enter(Page& page, PageState state, Block* block = nullptr);
  void recategorize(Page& page, Category category) noexcept;
  /// Attaches the block to its page, so that the release of the block is told to `keeper`.
  static void attach(Block* block, Page& page, PageKeeper& keeper) noexcept;
  static void detach(Block* block) noexcept;
  /// Tells the host tier when a page that is only there is needed.
  void tell_use(Page& page);

  /// Ends the page of a storage whose owner keeps its memory, which is no page's from now on.
  void unregister(Page& page) noexcept;
  /// Ends the page of a storage that is gone; its bytes are freed once no copy uses them. A page that recipes read
  /// becomes an orphan instead: its bytes stay, on whatever tier.
  void destroy(Page& page) noexcept;
  /// Releases the inputs of a recipe that has read them for the last time. Destroys orphans that were kept for it
  /// alone.
  void release_refs(const ReplayRecipe& recipe) noexcept;
  /// Lets leases begin. If `user` is given, it is the user of the pages from now on.
  void begin_leases(std::span<const PageUse> uses, UserId user) noexcept;
  /// Ends leases. Raw writes may have come until now, so the bytes count as changed only from here on.
  void end_leases(std::span<const PageUse> uses) noexcept;
  static void end_writes(std::span<const PageUse> uses) noexcept;
  /// Ends a lease. The record of a destroyed page ends with its last lease.
  void end_lease(Page& page) noexcept;

  /// Returns a copy that still uses the block of a destroyed page; nullptr when there is none.
  const Ticket* pending_free() const noexcept { return pending_.empty() ? nullptr : &pending_.front().copy; }
  /// Frees the blocks whose copies are done.
  void free_completed() noexcept;

 private:
  struct PendingFree {
    Block* block;
    HostCopy host;
    Ticket copy;
  };
  struct Watcher {
    UserId user;
    std::vector<PageId> destroyed;
  };

  int64_t device_bytes(const Page& page) const noexcept;
  int64_t managed_host_bytes(const Page& page) const noexcept;

  DeviceMemory& device_;
  HostTier& host_;
  mutable std::mutex mutex_;
  std::unordered_map<PageId, std::unique_ptr<Page>> pages_;
  std::vector<PendingFree> pending_;
  std::vector<Watcher> watchers_;
  PageId next_id_ = 1;
  UserId last_user_ = kNobody;
  int64_t users_ = 0;
  std::atomic<int64_t> ticks_ = 0;
  uint64_t moment_ = 0;                   // count of lease calls: orders least recently used
  std::atomic<int64_t> paged_bytes_ = 0;  // written under the lock, as are the next two
  std::atomic<double> delayed_seconds_ = 0;
  std::atomic<int64_t> recorded_destroyed_ = 0;  // over all watchers
  PagerStats stats_;
};

/// Keeps a page's record, and its bytes where they are, while the lock is given up.
class PageHold {
 public:
  PageHold(PageTable& table, Page& page) : table_(table), page_(page) { ++page_.leases; }
  ~PageHold() { table_.end_lease(page_); }
  PageHold(const PageHold&) = delete;
  PageHold& operator=(const PageHold&) = delete;

 private:
  PageTable& table_;
  Page& page_;
};

}  // namespace spillway::swap
