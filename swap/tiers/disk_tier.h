/// The disk tier: pages in a file, checksummed, read and written beside the caller.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/memory/host_slab.h"
#include "core/timeline.h"
#include "swap/tiers/disk_io.h"
#include "swap/tiers/page_file.h"

namespace spillway::swap {

/// The place of one page in the file. It ends, and its room is free again, when its last holder drops it.
struct DiskPage {
  DiskPage(std::shared_ptr<PageFile> in, int64_t size) : file(std::move(in)), bytes(size) {}
  ~DiskPage();
  DiskPage(const DiskPage&) = delete;
  DiskPage& operator=(const DiskPage&) = delete;

  const std::shared_ptr<PageFile> file;
  const int64_t bytes;
  int64_t offset = -1;                ///< offset in the file; -1: nothing written yet
  std::vector<uint64_t> checksums{};  ///< checksums of its chunks, as they were last written
};

/// The memory that a page's bytes come from or go to. Must stay valid until the ticket is done.
struct DiskMemory {
  void* data;
  /// The lane that copies between this memory and the host's; nullptr: it is host memory.
  Timeline* lane = nullptr;
  /// The owner of the memory, held until the last byte has moved.
  std::shared_ptr<const void> keep = nullptr;
};

struct DiskOptions {
  enum class Engine : uint8_t { automatic, uring, threads };
  /// The engine. automatic: io_uring where the system allows it, else threads, which is said once on stderr.
  Engine engine = Engine::automatic;
  /// Wraps the engine, to delay, fail or record operations.
  std::function<std::unique_ptr<DiskIo>(std::unique_ptr<DiskIo>)> decorate_io = nullptr;
};

struct DiskStats {
  int64_t bytes_written = 0;
  int64_t bytes_read = 0;
  double write_seconds = 0;  ///< seconds in which at least one write was under way
  double read_seconds = 0;   ///< seconds in which at least one read was under way
  int64_t used_bytes = 0;
  int64_t peak_bytes = 0;
};

/// Moves pages between memory and a PageFile in chunks, several at once, reads and writes in turn. Every chunk is
/// checksummed (XXH3) when written and verified when read: damage is an error, never a wrong number. Memory that the
/// disk cannot reach as it is (a device's, or not aligned) passes staging buffers of the host slab. Thread-safe. The
/// work runs on one thread of the tier's own and does not block callers.
class DiskTier {
 public:
  /// The callback that is told the outcome on the tier's thread, just before the ticket is done. Must not throw.
  using Done = std::function<void(const std::exception_ptr& error)>;
  static constexpr int kDepth = 8;
  static constexpr int64_t kMinHostBytes = 1 << 20;

  /// Makes the file; takes its staging buffers from `host`. Throws BadRequest when the directory cannot be used, or
  /// when `host` has less than kMinHostBytes.
  DiskTier(const std::filesystem::path& directory, HostSlab& host, const DiskOptions& options = {});
  /// Finishes the operations that were started, and removes the file.
  ~DiskTier();
  DiskTier(const DiskTier&) = delete;
  DiskTier& operator=(const DiskTier&) = delete;

  /// Makes a page of `bytes` that takes no room before it is written.
  std::shared_ptr<DiskPage> make_page(int64_t bytes) const { return std::make_shared<DiskPage>(file_, bytes); }
  /// Writes a whole page. A page that only this request still holds is not written. The ticket carries DiskError (full,
  /// failing); the page then holds nothing.
  [[nodiscard]] Ticket write(std::shared_ptr<DiskPage> page, DiskMemory from, Done done = nullptr);
  /// Reads a whole page that was written. The ticket carries DiskError (failing, or damaged, naming file and offset).
  [[nodiscard]] Ticket read(std::shared_ptr<DiskPage> page, DiskMemory to, Done done = nullptr);
  /// Reads `bytes` at `begin` of a written page to host memory, verifying the chunks they lie in. Blocks. Throws
  /// DiskError.
  void read_range(const std::shared_ptr<DiskPage>& page, int64_t begin, int64_t bytes, void* to);
  /// Changes `bytes` at `begin` of a written page that no other call reads or writes meanwhile. Blocks. Throws
  /// DiskError; each chunk of the page is then as it was or as it was to be, unless the disk tore it.
  void write_range(const std::shared_ptr<DiskPage>& page, int64_t begin, int64_t bytes, const void* from);

  DiskStats stats() const noexcept;
  const std::filesystem::path& path() const noexcept { return file_->path(); }
  int64_t chunk_bytes() const noexcept { return chunk_bytes_; }
  /// Returns the bytes of the host's memory that are taken for staging buffers.
  int64_t staging_bytes() const noexcept { return kDepth * chunk_bytes_; }
  /// Returns how the file is read and written, for messages: `io_uring, O_DIRECT`.
  std::string description() const;

 private:
  struct Request;
  /// A part of one chunk under way, and the staging buffer that it may use.
  struct Slot {
    DiskOperation operation{};
    std::shared_ptr<Request> request = nullptr;
    int64_t begin = 0;  ///< range of the page's bytes
    int64_t end = 0;
    uint64_t checksum = 0;  ///< checksum of the written bytes
    bool staged = false;
    char* staging = nullptr;
  };

  Ticket submit(std::shared_ptr<Request> request);
  void run();
  std::shared_ptr<Request> next_request();
  void start(const std::shared_ptr<Request>& request);
  void prepare_write(Slot& slot);
  void prepare_read(Slot& slot);
  void finish(const DiskOperation& operation);
  void deliver(Slot& slot);
  void retire(Slot& slot);
  std::string failure(const Slot& slot) const;

  HostSlab& host_;
  const std::shared_ptr<PageFile> file_;
  const int64_t chunk_bytes_;
  std::unique_ptr<DiskIo> io_;
  std::array<Slot, kDepth> slots_;
  int busy_slots_ = 0;
  bool reads_next_ = true;
  /// One direction's work.
  struct Lane {
    std::atomic<int64_t> bytes = 0;
    std::atomic<double> seconds = 0;
    int under_way = 0;
    std::chrono::steady_clock::time_point since{};
  };
  Lane& lane_of(const DiskOperation& operation) { return operation.write ? writing_ : reading_; }

  Lane writing_, reading_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Request>> reads_, writes_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace spillway::swap
