/// The pager of a random case with its memory and tiers, and pages whose bytes an oracle knows.
#pragma once
#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>

#include "swap/pager/pager.h"
#include "tests/support/buffers.h"
#include "tests/support/disk.h"
#include "tests/support/poison.h"
#include "tests/swap/pager/random_plan.h"

namespace spillway::testing {
using namespace swap;

/// The distance between the first words of two versions of a page.
inline constexpr uint64_t kVersionStride = 0x9e3779b97f4a7c15ull;

/// A buffer and the bytes that the oracle expects in it: words that follow from a version alone.
struct Tracked {
  Tracked(DeviceMemory& memory, Pager& pager, int64_t bytes) : buffer(memory, pager, bytes, 0) {}
  uint64_t word(size_t i) const { return version * kVersionStride + i * 0x2545f4914f6cdd1dull; }
  std::span<uint64_t> words() const {
    return {static_cast<uint64_t*>(buffer.data()), static_cast<size_t>(buffer.bytes()) / sizeof(uint64_t)};
  }
  void write(uint64_t next) {
    version = next;
    for (size_t i = 0; uint64_t & w : words()) w = word(i++);
  }
  bool good() const {
    if (!buffer.present()) return false;
    for (size_t i = 0; uint64_t w : words())
      if (w != (version ? word(i++) : 0)) return false;
    return true;
  }
  int64_t charge() const { return DeviceMemory::charge_of(buffer.bytes()); }

  Buffer buffer;
  uint64_t version = 0;  // 0: not written since its birth
  struct Origin {
    ReplayRecipe::Input input;
    uint64_t write_epoch;
    uint64_t by;  // 0: none
  };
  Origin origin{};   // the source of its bytes when they were last derived
  std::mutex mutex;  // guards a buffer that several threads use
};

/// Everything that the threads of a case share.
struct World {
  explicit World(const Plan& plan)
      : plan(plan),
        ledger("test", plan.budget_bytes),
        host(plan.host_bytes),
        disk(plan.disk ? make_disk(host, plan.seed) : nullptr),
        host_buffers_bytes(host.used_bytes()),
        out(make_lane(plan.out, plan.seed + 1)),
        in(make_lane(plan.in, plan.seed + 2)),
        pager(memory, host, *out, *in, plan.small_bytes, disk.get()) {
    memory.set_reclaimer(&pager);
  }
  std::unique_ptr<DiskTier> make_disk(HostSlab& slab, uint64_t seed) {
    auto control = std::make_shared<DiskSwitch>();
    control->longest_delay = std::chrono::microseconds(seed % 2 ? 0 : 200);
    return std::make_unique<DiskTier>(folder.path(), slab, DiskOptions{.decorate_io = switched(control)});
  }
  /// Returns the host bytes beyond the disk's buffers. Waits for them first, because the disk's prefetches may outlast
  /// their page for a moment.
  int64_t host_bytes_left() const {
    for (int i = 0; disk && i < 5000 && host.used_bytes() > host_buffers_bytes; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return host.used_bytes() - host_buffers_bytes;
  }
  void fail(const std::string& what) {
    std::lock_guard lock(mutex);
    if (failure.empty()) failure = what;
    stop = true;
  }

  const Plan& plan;
  Arena arena{int64_t{1} << 28};
  Ledger ledger;
  DeviceMemory memory{arena, ledger};
  TemporaryFolder folder;
  HostSlab host;
  std::unique_ptr<DiskTier> disk;
  const int64_t host_buffers_bytes;
  PoisonFreed poisoned_device{arena}, poisoned_host{host.arena()};
  std::unique_ptr<Timeline> out, in;
  Pager pager;
  std::deque<Tracked> shared;  // each used under its mutex
  std::mutex mutex;
  std::string failure;
  std::atomic<bool> stop = false;
};

}  // namespace spillway::testing
