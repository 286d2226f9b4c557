/// The host tier, which keeps absent pages: in the host slab, and below it on disk.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "core/ids.h"
#include "core/memory/host_slab.h"
#include "core/timeline.h"
#include "swap/tiers/copy_totals.h"
#include "swap/tiers/disk_tier.h"
#include "swap/tiers/host_copy.h"
#include "swap/tiers/window_copy.h"

namespace spillway::swap {

struct SlabBlock;

/// Keeps pages that left the device within the slab's capacity. When it is full and there is a disk, the copy with the
/// furthest next use goes there first, the arriving one included. Copies on disk come back ahead of their use as room
/// gets free. A copy that came back keeps its place on disk, so that it can leave again without being written.
/// Thread-safe. Nothing here blocks but make(), the calls for parts of a copy, the destructor, and some page-outs. A
/// page-out blocks when there is room for its bytes only once a device's copies are done with that room.
class HostTier {
 public:
  /// Makes a tier. `out` and `in` copy from and to the device; `disk` may be nullptr. All must outlive it.
  HostTier(HostSlab& slab, Timeline& out, Timeline& in, DiskTier* disk)
      : slab_(slab), out_(out), in_(in), disk_(disk) {}
  /// Waits for the disk's operations that are under way.
  ~HostTier();
  HostTier(const HostTier&) = delete;
  HostTier& operator=(const HostTier&) = delete;

  /// Starts copying `bytes` at `device` to a new copy. `ticket` is done when they have been read. It carries DiskError
  /// when the disk had to take bytes and failed. Throws OutOfBudget when the slab is full and there is no disk.
  [[nodiscard]] HostCopy page_out(const void* device, int64_t bytes, PageUseTime use, Ticket& ticket);
  /// Makes a copy of `bytes` that has no contents yet, to be filled with write(). Blocks while others go to disk for
  /// it. Throws OutOfBudget when the slab is full and there is no disk, DiskError.
  [[nodiscard]] HostCopy make(int64_t bytes, PageUseTime use);
  /// Starts copying back. The ticket carries DiskError when the bytes cannot be had as they were.
  [[nodiscard]] Ticket page_in(HostCopy& copy, void* device);
  /// Notes that the copy is now the only one of its page, which is needed at `use`: it is worth bringing back from disk
  /// ahead.
  void mark_last_copy(HostCopy& copy, PageUseTime use);

  /// True when a page of this size could come now without any copy having to leave.
  bool has_room(int64_t bytes) const;
  /// Returns the bytes that the slab has left, fragments and the room of copies that end soon included.
  int64_t free_bytes() const;
  /// True when letting go of the copy would free room in the slab.
  bool in_slab(const HostCopy& copy) const;
  bool has_disk() const noexcept { return disk_ != nullptr; }
  /// Returns the totals of the lanes from and to the device, and of the disk, so far.
  LaneTotals copied() const;
  HostSlab& slab() noexcept { return slab_; }

  /// Reads or changes a part of an absent page's bytes from the calling thread, wherever they are. Blocks, also for a
  /// page-out under way. `write` must not overlap a page-in. Throws DiskError.
  void read(const HostCopy& copy, int64_t begin, int64_t bytes, void* to);
  void write(HostCopy& copy, int64_t begin, int64_t bytes, const void* from);

  /// Copies a window between a copy and the memory of a device that the host does not reach: through the lanes, behind
  /// the work that compute was given before. Later work of compute on that memory, and on the copy, must come after the
  /// ticket's order_compute_after(). Blocks for bytes on disk. Throws DiskError.
  [[nodiscard]] Ticket read_window(const HostCopy& copy, const WindowCopy& window, void* device);
  [[nodiscard]] Ticket write_window(HostCopy& copy, const WindowCopy& window, const void* device);

 private:
  friend class HostCopy;
  struct Waiting {
    std::shared_ptr<HostCopy::State> copy;
    const void* device;
    TicketSource source;
  };
  using Block = SlabBlock;
  /// Room that is no longer wanted, while a device's copy still uses it.
  struct PendingFree {
    std::shared_ptr<Block> block;
    Ticket copy;
  };
  using State = HostCopy::State;
  /// Keeps a copy where it is while a range call uses it.
  class Pin {
   public:
    Pin(HostTier& tier, State& copy);
    ~Pin();
    Pin(const Pin&) = delete;
    Pin& operator=(const Pin&) = delete;

   private:
    HostTier& tier_;
    State& copy_;
  };
  /// The place of a pinned copy's bytes: in the slab, or else on disk.
  struct Place {
    std::shared_ptr<Block> block;
    std::shared_ptr<DiskPage> disk;
  };

  std::shared_ptr<Block> take(int64_t bytes);
  std::shared_ptr<Block> own(void* data, int64_t bytes);
  State* eviction_candidate();
  void start_waiting() noexcept;
  bool try_start(Waiting& waiting);
  void write_through(Waiting& waiting);
  void spill(State& copy);
  static void leave_slab(State& copy);
  void spilled(State& copy, const std::exception_ptr& error);
  void prefetch_from_disk() noexcept;
  void on_prefetched(State& copy, std::shared_ptr<Block> block, const std::exception_ptr& error);
  void drop(State& copy) noexcept;
  void deliver(const State& copy, const std::shared_ptr<Block>& block, void* device, TicketSource& source);
  void settle(const State& copy, void (Ticket::*how)() const);
  Place place_to_read(const State& copy);
  Place place_to_write(State& copy);
  Ticket record_read(State& copy, Ticket window);
  Ticket record_written(State& copy, Ticket window);
  void reap() noexcept;
  void wait_for_pending();

  HostSlab& slab_;
  Timeline& out_;
  Timeline& in_;
  DiskTier* const disk_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::unordered_set<State*> copies_;
  std::vector<PendingFree> pending_;
  std::deque<Waiting> waiting_;  // page-outs that need room first
  int64_t waiting_bytes_ = 0;
  int64_t leaving_bytes_ = 0;  // bytes of the slab, on their way to disk
  int prefetches_ = 0;
  int moving_ = 0;  // copies that the disk reads or writes
};

}  // namespace spillway::swap
