// A double of a device with streams. The host only queues operators, which run on a lane of their own, and copies run
// on other lanes. Only the edges that a real device's lanes draw order the three, and each edge can be left out.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "core/memory/device_memory.h"
#include "core/strided_runs.h"
#include "core/timeline.h"
#include "tests/support/poison.h"

namespace spillway::testing {

/// The compute queue, which sometimes sleeps for a while.
class ComputeQueue {
 public:
  explicit ComputeQueue(uint32_t seed) : random_(seed) {}
  Ticket submit(std::function<void()> work) {
    std::lock_guard lock(mutex_);
    const std::chrono::microseconds nap(random_() % 4 == 0 ? random_() % 200 : 0);
    return lane_.submit([nap, work = std::move(work)] {
      if (nap.count()) std::this_thread::sleep_for(nap);
      work();
    });
  }
  /// Returns a ticket that is done when all work submitted before is done.
  Ticket position() {
    return lane_.submit([] {});
  }

 private:
  std::mutex mutex_;
  std::mt19937 random_;
  WorkerTimeline lane_{"compute"};
};

/// The edges between a copy lane and the compute queue.
struct Edges {
  bool copy_waits_for_compute = true;
  bool compute_waits_for_copy = true;
};

/// A record of where the bytes of managed memory are, as queues move and use it. A kernel finds the bytes wherever they
/// are, as on a GPU, but it should not have to wait for them. Thread-safe.
class ManagedMemory {
 public:
  /// Notes that a kernel uses the range. Returns false when its bytes were not on the device, so that the kernel had to
  /// wait for them.
  bool use(void* data, int64_t bytes) {
    std::lock_guard lock(mutex_);
    const bool known = on_device_.count(data) > 0;
    set(data, bytes, Side::device);
    return known;
  }
  void move(void* data, int64_t bytes, Side to) {
    std::lock_guard lock(mutex_);
    set(data, bytes, to);
  }
  void forget(void* data) {
    std::lock_guard lock(mutex_);
    set(data, 0, Side::host);
  }
  int64_t peak_bytes() const {
    std::lock_guard lock(mutex_);
    return peak_bytes_;
  }

 private:
  void set(void* data, int64_t bytes, Side to) {
    bytes_ -= std::exchange(on_device_[data], to == Side::device ? bytes : 0);
    bytes_ += on_device_[data];
    if (to == Side::host) on_device_.erase(data);
    peak_bytes_ = std::max(peak_bytes_, bytes_);
  }

  mutable std::mutex mutex_;
  std::map<void*, int64_t> on_device_;
  int64_t bytes_ = 0;
  int64_t peak_bytes_ = 0;
};

/// A copy stream. Its copies start late by random times, behind the compute queue's position at submission.
class StreamTimeline final : public Timeline {
 public:
  StreamTimeline(std::shared_ptr<ComputeQueue> compute, uint32_t seed, Edges edges = {},
                 std::shared_ptr<ManagedMemory> managed = nullptr)
      : compute_(std::move(compute)), random_(seed), edges_(edges), managed_(std::move(managed)) {}
  Ticket copy(void* destination, const void* source, int64_t bytes) override {
    return submit([=] { std::memcpy(destination, source, static_cast<size_t>(bytes)); });
  }
  Ticket copy_runs(void* destination, const void* source, const StridedRuns& runs) override {
    return submit([=] {
      runs.for_each_run([&](int64_t to, int64_t from) {
        std::memcpy(static_cast<char*>(destination) + to, static_cast<const char*>(source) + from,
                    static_cast<size_t>(runs.run_bytes));
      });
    });
  }
  /// Draws these edges for all copies from now on.
  void draw(Edges edges) {
    std::lock_guard lock(mutex_);
    edges_ = edges;
  }
  Ticket move(void* data, int64_t bytes, Side to) override {
    return submit([=, managed = managed_] { managed->move(data, bytes, to); });
  }

 private:
  Ticket submit(std::function<void()> work) {
    std::lock_guard lock(mutex_);
    const std::chrono::microseconds delay(random_() % 300);
    const Ticket position = edges_.copy_waits_for_compute ? compute_->position() : Ticket();
    Ticket copied = worker_.submit([=, work = std::move(work)] {
      position.wait();
      std::this_thread::sleep_for(delay);
      work();
    });
    return Ticket(std::make_shared<Copy>(std::move(copied), edges_.compute_waits_for_copy ? compute_ : nullptr));
  }

  class Copy final : public QueuedWork {
   public:
    Copy(Ticket copied, std::shared_ptr<ComputeQueue> compute)
        : copied_(std::move(copied)), compute_(std::move(compute)) {}
    bool done() override { return copied_.done(); }
    void wait() override { copied_.wait(); }
    void order_compute_after() override {
      if (compute_ && !copied_.done()) (void)compute_->submit([copied = copied_] { copied.wait(); });
    }

   private:
    const Ticket copied_;
    const std::shared_ptr<ComputeQueue> compute_;
  };

  const std::shared_ptr<ComputeQueue> compute_;
  std::mutex mutex_;
  std::mt19937 random_;
  Edges edges_;
  const std::shared_ptr<ManagedMemory> managed_;
  WorkerTimeline worker_{"stream"};
};

/// Memory that goes back to its pool in the compute queue's order, as a caching allocator's does. A returned block is
/// poisoned when compute gets there, and it can be allocated again at once.
class StreamBlocks final : public BlockSource {
 public:
  StreamBlocks(Arena& arena, std::shared_ptr<ComputeQueue> compute) : arena_(arena), compute_(std::move(compute)) {}
  Block* try_acquire(int64_t charge, Category category) override {
    void* data = arena_.try_allocate(charge);
    return data ? new Block{data, charge, nullptr, nullptr, category} : nullptr;
  }
  void return_block(Block* block) noexcept override {
    (void)compute_->submit([data = block->data, bytes = block->charged_bytes] { poison(data, bytes); });
    arena_.deallocate(block->data, block->charged_bytes);
    delete block;
  }

 private:
  Arena& arena_;
  const std::shared_ptr<ComputeQueue> compute_;
};

/// A source of managed memory, whose blocks stay allocated.
class ManagedBlocks final : public BlockSource {
 public:
  ManagedBlocks(Arena& arena, std::shared_ptr<ComputeQueue> compute, std::shared_ptr<ManagedMemory> managed)
      : arena_(arena), compute_(std::move(compute)), managed_(std::move(managed)) {}
  Block* try_acquire(int64_t charge, Category category) override {
    void* data = arena_.try_allocate(charge);
    return data ? new Block{data, charge, nullptr, nullptr, category, /*is_managed=*/true} : nullptr;
  }
  void return_block(Block* block) noexcept override {
    (void)compute_->submit([managed = managed_, data = block->data] { managed->forget(data); });
    arena_.deallocate(block->data, block->charged_bytes);
    delete block;
  }

 private:
  Arena& arena_;
  const std::shared_ptr<ComputeQueue> compute_;
  const std::shared_ptr<ManagedMemory> managed_;
};

}  // namespace spillway::testing
