/// Residency: which pages are on the device, which are on the host, and what moves.
#pragma once
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/memory/device_memory.h"
#include "core/memory/host_slab.h"
#include "core/timeline.h"
#include "swap/pager/page.h"
#include "swap/pager/pager_stats.h"
#include "swap/tiers/host_tier.h"
#include "swap/tiers/window_copy.h"

namespace spillway {

struct PageUse {
  Page* page;
  bool write;
  int64_t next_use = kNextUseUnknown;  ///< what the page gets when the lease ends
};
/// A PageUse that leaves the page's next use as it is.
inline constexpr int64_t kNextUseKept = -1;

/// Keeps the device's counted bytes within the ledger's budget by moving pages between device and host tier.
///
/// Eviction takes the page with the furthest next use; where next uses are unknown, clean pages before dirty ones, then
/// the least recently used, and of those the ones below `small_bytes` after all others. When a page-out cannot be had
/// (the host is full, a copy fails), others leave instead, clean ones first, and the error is thrown when none is left
/// that can. A page-out is a copy to the host, after which the page
/// is *clean* and its device bytes can be dropped at any time without another copy; it can be started early. Copies run
/// on the two timelines, never under the lock; only callers' threads change owners' pointers; a copy keeps the blocks
/// it uses, never the owner. What compute needs is that it comes after a copy, so the pager joins tickets: on the CPU
/// it waits, on a device compute is ordered behind the copy and callers go on. Blocks come from, and go back to, the
/// compute queue's order. Managed memory (Block::stays) keeps its block while its bytes move to the host and back: for
/// it a page-out is the eviction, nothing is ever clean, and under a soft budget what cannot fit goes in all the same.
/// Thread-safe. Knows bytes and callbacks, not tensors.
class Pager final : public Reclaimer, public PageKeeper {
 public:
  /// Pages that the slab has no room for go to `disk`, if there is one.
  Pager(DeviceMemory& device, HostSlab& host, Timeline& out, Timeline& in, int64_t small_bytes = 1 << 20,
        DiskTier* disk = nullptr);
  ~Pager() override;
  Pager(const Pager&) = delete;
  Pager& operator=(const Pager&) = delete;

  /// A new user. Users share the pages' memory, and may share pages.
  UserId add_user();
  int64_t users() const;
  /// The user is gone while others stay. Its thread will go on without the gate, so the pages that it used last must
  /// not move under it: they leave the device, and raise the clear error until somebody leases them or all come home.
  /// What cannot leave (the host is full) stays on the device and is a page no more, once what is to be made of it has
  /// been made; where that has no room, it stays a page. Leased ones keep their leases.
  void retire(UserId user) noexcept;

  /// Registers a resident, dirty page of `bytes` for `block`. The caller's owner holds the block.
  Page* add(Block* block, int64_t bytes, std::unique_ptr<PageOwner> owner, UserId user = kNobody);

  /// Makes all pages resident and holds them so, all or nothing; written ones become dirty, after any copy that still
  /// reads them. Blocks on copies. A page may occur more than once. The pages become `user`'s, if it is given.
  /// Throws OutOfBudget when they do not fit together beside what else is held, or a failed copy's error; nothing is
  /// leased then.
  void lease(std::span<const PageUse> uses, UserId user = kNobody);
  /// Ends the leases; each page's next use becomes the use's.
  void unlease(std::span<const PageUse> uses) noexcept;

  // Windows: bytes of a page that are used where they are, so that the page need not be resident (pager_windows.cpp).

  /// Registers an absent page of `bytes` whose host copy, undefined yet, is to be filled with write_window.
  /// Throws OutOfBudget when the host is full and there is no disk, DiskError.
  Page* add_absent(int64_t bytes, Category category, std::unique_ptr<PageOwner> owner, UserId user = kNobody);
  /// Makes those again that are discarded, and what is made of those that are written: as lease() does, before the
  /// operator holds anything. Throws as lease().
  void restore(std::span<const PageUse> uses);
  /// Pins a page where it is until unpin(). True: it is resident, leased as by lease(). False: it is absent, and
  /// nobody brings it in or changes its host copy meanwhile but through read_window and write_window. Joins copies
  /// that are under way. Throws a failed copy's error; nothing is pinned then.
  bool pin(const PageUse& use, UserId user = kNobody);
  void unpin(const PageUse& use, bool resident) noexcept;
  /// Copies between the host copy of a page that is pinned absent, wherever that is, and device memory: on the calling
  /// thread where that memory is the host's, else through the lanes, and compute is ordered behind it. Throws
  /// DiskError, or what the copy failed with.
  void read_window(const Page& page, const WindowCopy& copy, void* memory);
  void write_window(Page& page, const WindowCopy& copy, const void* memory);
  /// A block for a new page, made by evicting pages that are next used after `used_after` (-1: any), but for `keep`.
  /// nullptr: such room cannot be made, and the page had better be born on the host.
  Block* try_allocate(int64_t bytes, Category category, int64_t used_after, std::span<const PageUse> keep);
  /// Brings an absent page in if room can be made in the same way, and waits for it.
  void admit(Page& page, int64_t used_after, std::span<const PageUse> keep);

  /// Starts copying a resident, dirty page to the host so that it can be dropped later. Does nothing for other pages.
  void start_page_out(PageId id);
  /// Starts bringing an absent page back if its bytes fit, dropping clean pages whose next use is later. False: no room
  /// now. True for a page that is resident, on its way, or gone.
  bool try_prefetch(PageId id);
  /// For a thread that follows no schedule, between operators. When a quarter of the budget or less is free, what would
  /// be evicted next is copied out already, so that evicting it needs no wait. When operators had to ask for absent
  /// pages since the last call, those that were used last come back into free room: backward asks in reverse.
  void work_ahead_of_demand();
  /// Drops a resident page without keeping a copy; it is made again by `recipe` when it is leased next, or before a
  /// page that the recipe reads is written. Pages that it reads keep their bytes (on any tier) until then, also when
  /// their owners die. False, and nothing happens: the page is leased, being copied or gone, or it or what the recipe
  /// reads was written since, or may be written now.
  bool discard(PageId id, std::unique_ptr<Recipe> recipe);
  /// Makes a discarded page again now. Does nothing for other pages. Throws as lease().
  void replay(PageId id);
  /// The page, which a recipe holds; for recipes. Throws std::logic_error when it is no page.
  Page& held_page(PageId id);
  /// Drops everything that is not leased, copying what is dirty. For doubles and tests.
  void evict_all();
  /// Brings every page home and forgets it; the owners keep their memory. The budget must allow it. Pages that cannot
  /// come stay as they are, and the first one's error is thrown at the end.
  void bring_home();
  /// The same for one page, which may be leased. Throws when it cannot come; it is a page then as before.
  void bring_home(Page& page);

  /// From now on the page leaves before all others, until it is used again or has left.
  void release(PageId id);
  void set_next_use(Page& page, int64_t next_use);
  void set_next_use(PageId id, int64_t next_use);
  /// Of the pages that `user` used last.
  void forget_next_uses(UserId user);
  /// Every page that `user` used last.
  template <class Visit>
  void for_each_of(UserId user, Visit&& visit) {
    std::lock_guard lock(mutex_);
    for (auto& [id, page] : pages_) {
      if (page->user != user) continue;
      visit(*page);
      note_use(*page);
    }
  }
  /// What `look` returns, while no owner's pointer changes: finding the page of an owner that others may page out.
  template <class Look>
  auto locked(Look&& look) {
    std::lock_guard lock(mutex_);
    return look();
  }
  /// From now on (anew), pages that end are noted for this user, whoever used them.
  void note_ends(UserId user);
  /// Appends to `ended` and forgets what was noted since the last call.
  void take_ended(UserId user, std::vector<PageId>& ended);
  void stop_noting_ends(UserId user) noexcept;

  /// Counts an operator that some user traces; returns how many were counted before. The clock of next uses.
  int64_t tick() noexcept { return ticks_.fetch_add(1); }
  int64_t ticks() const noexcept { return ticks_.load(); }

  // Reclaimer
  void reclaim(int64_t bytes) override;
  bool relieve(int64_t bytes) override;
  // PageKeeper
  void released(Block* block) noexcept override;
  /// The owner of an absent page died: its host copy goes too. Any thread.
  void absent_owner_died(Page* page) noexcept;

  void recategorize(Page& page, Category category) noexcept;
  PagerStats stats() const;
  /// Seconds that callers have waited for copies so far.
  double exposed_seconds() const;
  /// The same and the seconds of replays.
  double delayed_seconds() const;
  /// What the copy lanes and the disk have done so far.
  LaneTotals copied() const { return host_.copied(); }
  /// Device bytes held by pages, those on their way in or out included.
  int64_t paged_bytes() const;
  int64_t small_bytes() const noexcept { return small_bytes_; }
  HostSlab& host() noexcept { return host_.slab(); }
  DeviceMemory& device() noexcept { return device_; }

 private:
  /// The lock, and owners to let go of after it.
  struct Guard {
    explicit Guard(std::mutex& mutex) : lock(mutex) {}
    std::vector<std::shared_ptr<void>> kept;
    std::vector<std::unique_ptr<Recipe>> used_recipes;
    std::unique_lock<std::mutex> lock;
  };
  /// Blocks whose page ended while a copy was using them.
  struct Lingering {
    Block* block;
    HostCopy host;
    Ticket copy;
  };
  struct EndsOf {
    UserId user;
    std::vector<PageId> ended;
  };
  /// Pages whose copies out could not be had while room was made, and why the first one's could not.
  struct Refusals {
    std::unordered_set<PageId> pages;
    std::exception_ptr first;
    void note(PageId page);
  };

  void send_away(Guard& guard, Page& page);
  void try_send_away(Guard& guard, Page& page, Refusals& refused);
  void begin_another(Page& first, const Refusals& refused);
  void make_room(Guard& guard, int64_t bytes);
  bool make_progress(Guard& guard);
  Page* next_victim(int64_t used_after, const Refusals& refused);
  Page* choose_victim(int64_t used_after, bool clean_only, const Refusals& refused);
  bool goes_last(const Page& page) const noexcept;
  bool drop(Guard& guard, Page& page);
  void make_host_room(const Page& page);
  void begin_page_out(Page& page);
  bool try_page_out(Page& page);
  void finish_page_out(Guard& guard, Page& page);
  bool pass(Page& page) noexcept;
  void let_pass(Guard& guard, Page& page);
  static bool leaving(const Page& page) noexcept;
  void park(Page& page, Block* block) noexcept;
  bool unpark(Page& page) noexcept;
  bool begin_page_in(Page& page);
  bool try_page_in(Page& page);
  void demand_page_in(Guard& guard, Page& page);
  bool relieve(Guard& guard, int64_t bytes);
  void finish_page_in(Guard& guard, Page& page);
  void bring_in(Guard& guard, Page& page);
  void settle(Page& page) noexcept;
  void clean_ahead(int64_t bytes);
  void fetch_back(int64_t reserve);
  void restore(Guard& guard, Page& page);
  void restore_before_use(Guard& guard, std::span<const PageUse> uses);
  void restore_readers(Guard& guard, PageId id);
  void install(Guard& guard, Page& page, Block* block);
  bool can_hold(const Recipe& recipe);
  void release_holds(const Recipe& recipe) noexcept;
  void lose_owner(Page& page) noexcept;
  void make_dirty(Guard& guard, Page& page);
  void wait(Guard& guard, const Ticket& ticket, void (Ticket::*how)() const = &Ticket::wait);
  void pause(Guard& guard);
  bool make_room_after(Guard& guard, int64_t bytes, int64_t used_after, std::span<const PageUse> keep);
  void note_window(int64_t bytes, int64_t PagerStats::*counter, double seconds);
  void reap();
  std::exception_ptr come_home(Guard& guard, Page& page);
  bool retire(Guard& guard, Page& page) noexcept;
  void attach(Block* block, Page& page) noexcept;
  static void detach(Block* block) noexcept;
  void forget(Page& page) noexcept;
  void end(Page* page) noexcept;
  void prepare(Guard& guard, std::span<const PageUse> uses);
  static void end_writes(std::span<const PageUse> uses) noexcept;
  void end_leases(std::span<const PageUse> uses) noexcept;
  void let_go(std::span<const PageUse> uses) noexcept;
  void note_use(Page& page);
  bool fits(int64_t bytes) const;

  DeviceMemory& device_;
  HostTier host_;
  Timeline& out_;
  Timeline& in_;
  const int64_t small_bytes_;
  mutable std::mutex mutex_;
  std::unordered_map<PageId, std::unique_ptr<Page>> pages_;
  std::vector<Lingering> lingering_;
  std::vector<EndsOf> noting_;
  PageId next_id_ = 1;
  UserId last_user_ = kNobody;
  int64_t users_ = 0;
  std::atomic<int64_t> ticks_ = 0;
  uint64_t clock_ = 0;  // of leases: orders least recently used
  int64_t paged_bytes_ = 0;
  int64_t demands_seen_ = 0;  // by work_ahead_of_demand
  PagerStats stats_;
};

}  // namespace spillway
