// The rates that paging to disk reaches beside the disk's own rates, when half of the bytes that leave the device go to
// disk.
//     build/bin/disk_tier DIRECTORY [GIB OF PAGES, 4] [io_uring|threads]
// First the disk alone is measured: large sequential writes and reads by the same engine, with as many operations at
// once, without checksums. Then a loop like training runs. Every page is made in forward, leaves at once, and comes
// back in backward in the opposite order. The device holds eight pages, and the host half of the rest. Each rate counts
// from the first operation of a direction in a step to its last. The disk's rates are also measured while such a loop
// runs without a disk. They show the rate that the disk can give when the processor and its memory are busy with the
// pages themselves.
#include "swap/tiers/disk_tier.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "core/bytes.h"
#include "core/clock.h"
#include "core/error.h"
#include "tests/support/buffers.h"

namespace {

using namespace spillway;
using namespace spillway::swap;

constexpr int64_t kPageBytes = 16 << 20;
constexpr int64_t kDevicePages = 8;
constexpr int kSteps = 3;

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

struct Rates {
  double write = 0, read = 0;  // bytes per second
};

/// The time in which the disk worked in one direction since the last reset, and the bytes that it moved.
struct Window {
  Clock::time_point first{}, last{};
  int64_t bytes = 0;
  double rate() const { return bytes ? static_cast<double>(bytes) / seconds_between(first, last) : 0; }
};
struct Windows {
  Window write, read;
};

/// Records when operations start and end. Read its windows only between steps.
class WatchedIo final : public DiskIo {
 public:
  WatchedIo(std::unique_ptr<DiskIo> real, Windows& windows) : real_(std::move(real)), windows_(windows) {}
  void start(DiskOperation& operation) override {
    Window& window = operation.write ? windows_.write : windows_.read;
    if (window.bytes == 0) window.first = Clock::now();
    real_->start(operation);
    window.bytes += operation.bytes;
  }
  DiskOperation& wait() override {
    DiskOperation& operation = real_->wait();
    (operation.write ? windows_.write : windows_.read).last = Clock::now();
    return operation;
  }
  std::string name() const override { return real_->name(); }

 private:
  std::unique_ptr<DiskIo> real_;
  Windows& windows_;
};

std::unique_ptr<DiskIo> make_engine(DiskOptions::Engine engine) {
  std::string why_not;
  if (engine == DiskOptions::Engine::threads) return make_thread_io(2);
  auto io = make_uring_io(DiskTier::kDepth, why_not);
  return io ? std::move(io) : make_thread_io(2);
}

/// Moves `bytes` between memory and the file, from start to end, with kDepth operations at once. Returns bytes per
/// second.
double sweep(DiskIo& io, const PageFile& file, char* memory, int64_t chunk, int64_t bytes, bool write) {
  std::vector<DiskOperation> operations(DiskTier::kDepth);
  const auto start = Clock::now();
  int64_t next = 0, in_flight = 0;
  auto issue = [&](DiskOperation& op) {
    op = {.descriptor = file.descriptor(), .write = write, .data = memory + next, .bytes = chunk, .offset = next};
    next += chunk;
    ++in_flight;
    io.start(op);
  };
  for (DiskOperation& op : operations) issue(op);
  while (in_flight > 0) {
    DiskOperation& op = io.wait();
    --in_flight;
    if (op.failed()) throw DiskError("the disk failed");
    if (next < bytes) issue(op);
  }
  return static_cast<double>(bytes) / seconds_between(start, Clock::now());
}

Rates measure_raw(const std::filesystem::path& directory, DiskOptions::Engine engine, int64_t chunk, int64_t bytes) {
  PageFile file(directory);
  (void)file.allocate(bytes);
  auto io = make_engine(engine);
  MemoryRange memory = reserve_memory(bytes);  // a small buffer would stay in the processor's cache
  std::fill_n(memory.data(), memory.bytes(), 'x');
  (void)sweep(*io, file, memory.data(), chunk, bytes, true);  // the file's extents exist from here on
  return {sweep(*io, file, memory.data(), chunk, bytes, true), sweep(*io, file, memory.data(), chunk, bytes, false)};
}

struct Loop {
  Arena arena{(kDevicePages + 4) * (kPageBytes + 4096)};
  Ledger ledger{"device", kDevicePages* DeviceMemory::charge_of(kPageBytes)};
  DeviceMemory memory{arena, ledger};
  HostSlab host;
  Windows windows;
  std::unique_ptr<DiskTier> disk;
  WorkerTimeline out{"copy out"}, in{"copy in"};
  Pager pager;

  /// Makes a loop without a disk.
  explicit Loop(int64_t host_bytes) : host(host_bytes), pager(memory, host, out, in) { memory.set_reclaimer(&pager); }
  Loop(const std::filesystem::path& directory, DiskOptions::Engine engine, int64_t host_bytes)
      : host(host_bytes),
        disk(std::make_unique<DiskTier>(directory, host, watched(engine))),
        pager(memory, host, out, in, 0, disk.get()) {
    memory.set_reclaimer(&pager);
  }

  DiskOptions watched(DiskOptions::Engine engine) {
    return {.engine = engine,
            .decorate_io = [this](auto real) { return std::make_unique<WatchedIo>(std::move(real), windows); }};
  }

  void step(int64_t pages) {
    std::vector<std::unique_ptr<testing::Buffer>> made;
    for (int64_t i = 0; i < pages; ++i) {
      made.push_back(std::make_unique<testing::Buffer>(memory, pager, kPageBytes, static_cast<unsigned char>(i)));
      pager.table().set_next_use(*made.back()->page(), 2 * pages - i);
      pager.prefetcher().start_page_out(made.back()->page()->id);
    }
    for (int64_t i = pages - 1; i >= 0; --i) {
      for (int64_t ahead = i; ahead >= std::max<int64_t>(0, i - kDevicePages + 2); --ahead)
        if (!pager.prefetcher().try_page_in(made[static_cast<size_t>(ahead)]->page()->id)) break;
      PageUse use{made[static_cast<size_t>(i)]->page(), false};
      pager.lease({&use, 1});
      if (!made[static_cast<size_t>(i)]->holds(static_cast<unsigned char>(i))) throw DiskError("wrong bytes");
      pager.unlease({&use, 1});
      made.pop_back();
    }
  }
};

double percent(double part, double whole) {
  return whole > 0 ? 100 * part / whole : 0;
}

/// Returns the disk's rates while a loop without a disk keeps memory and cores as busy as the tier's callers do.
Rates measure_loaded(const std::filesystem::path& directory, DiskOptions::Engine engine, int64_t chunk, int64_t pages,
                     int64_t bytes) {
  Loop loop((pages + 1) * kPageBytes);
  loop.step(pages);  // memory is touched for the first time
  std::jthread beside([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) loop.step(pages);
  });
  return measure_raw(directory, engine, chunk, bytes);
}

int run(const std::filesystem::path& directory, int64_t bytes, DiskOptions::Engine engine) {
  const int64_t pages = bytes / kPageBytes;
  const int64_t leaving = (pages - kDevicePages) * kPageBytes;
  Loop loop(directory, engine, leaving / 2 + DiskTier::kDepth * (1 << 20));
  std::printf("%lld pages of %s; device %lld pages, host %s; %s\n", static_cast<long long>(pages),
              format_bytes(kPageBytes).c_str(), static_cast<long long>(kDevicePages),
              format_bytes(loop.host.capacity_bytes()).c_str(), loop.disk->description().c_str());
  const Rates raw = measure_raw(directory, engine, loop.disk->chunk_bytes(), leaving / 2);
  std::printf("disk alone:   write %6.2f GB/s, read %6.2f GB/s\n", raw.write / 1e9, raw.read / 1e9);
  const Rates loaded = measure_loaded(directory, engine, loop.disk->chunk_bytes(), pages, leaving / 2);
  std::printf("under load:   write %6.2f GB/s, read %6.2f GB/s\n", loaded.write / 1e9, loaded.read / 1e9);
  loop.step(pages);  // the file grows and memory is touched for the first time
  for (int i = 0; i < kSteps; ++i) {
    loop.windows = {};
    const auto start = Clock::now();
    loop.step(pages);
    const double took = seconds_between(start, Clock::now());
    const Window write = loop.windows.write, read = loop.windows.read;
    const double bound = static_cast<double>(write.bytes) / raw.write + static_cast<double>(read.bytes) / raw.read;
    std::printf(
        "step %d:       write %6.2f GB/s (%3.0f %%), read %6.2f GB/s (%3.0f %%); %s + %s in %.2f s, the disk "
        "alone %.2f s (%.0f %%)\n",
        i + 1, write.rate() / 1e9, percent(write.rate(), raw.write), read.rate() / 1e9, percent(read.rate(), raw.read),
        format_bytes(write.bytes).c_str(), format_bytes(read.bytes).c_str(), took, bound, percent(bound, took));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 4) {
    std::fprintf(stderr, "disk_tier DIRECTORY [GIB OF PAGES] [io_uring|threads]\n");
    return 2;
  }
  const int64_t gib = argc > 2 ? std::atoll(argv[2]) : 4;
  const auto engine =
      argc > 3 && std::string(argv[3]) == "threads" ? DiskOptions::Engine::threads : DiskOptions::Engine::automatic;
  try {
    return run(argv[1], std::max<int64_t>(gib, 1) << 30, engine);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
