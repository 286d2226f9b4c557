/// What a Session is asked for.
#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "core/bytes.h"
#include "swap/windows/split_sizes.h"

namespace spillway {

class DiskIo;
class OperatorObserver;
class Timeline;

/// How tensors move between device and host.
enum class Engine : uint8_t {
  /// By the gate's copies into host memory of Spillway's own, on every device. The budget is a promise.
  gate,
  /// By CUDA's Unified Memory, on a card: tensors of 64 KiB and more are born in managed memory, and the same pager and
  /// schedule prefetch them both ways. Pointers stay valid for everybody. An operator that needs more than the budget
  /// runs all the same, on what the driver's page faults bring: the budget is then the driver's to keep or not, and the
  /// counted peak says by how much it was exceeded. Nothing is replayed, split into windows, or put on disk.
  unified
};
std::string_view name(Engine engine) noexcept;

struct SessionOptions {
  /// Whose tensors are paged: "cpu", "cuda" or "cuda:N", one for all Sessions that are open together. On CUDA all
  /// operators must use the stream that is current when the first Session opens; tensors elsewhere are left alone. A
  /// program that does not link LibTorch's CUDA half opens the Session (or calls open_device) before it draws random
  /// numbers or runs backward: LibTorch looks for cards once.
  std::string device = "cpu";
  /// Sessions that are open together ask for the same.
  Engine engine = Engine::gate;
  /// Device bytes that may be held at any instant, by all tensors of the process. Default: no limit. Sessions that are
  /// open together ask for the same budgets and small_page_bytes.
  int64_t budget_bytes = kUnlimitedBytes;
  /// Host bytes for pages that left the device. Default: no limit but the machine's. When they are used up, pages go on
  /// to disk, or without one the operator that needs room throws OutOfBudget.
  int64_t host_budget_bytes = kUnlimitedBytes;
  /// Where to keep the file of the pages that the host budget has no room for; best on a fast local disk. Empty: none.
  /// With a directory, the host budget must be at least 1 MiB.
  std::filesystem::path disk_directory = {};
  /// Follow a schedule from the second step of a kind on (early page-outs, prefetch, furthest next use). Off: on
  /// demand.
  bool prefetch = true;
  /// Let the schedule run cheap deterministic operators (norms, activations, concatenations, upsampling) again instead
  /// of copying what they made, where that is faster. Never changes a bit. Needs `prefetch`.
  bool replay = true;
  /// Storages below this stay where they are.
  int64_t min_page_bytes = 4096;
  /// Pages below this whose next use no schedule knows leave last: losses and metrics stay at hand.
  int64_t small_page_bytes = 1 << 20;
  /// Operators whose large tensors and scratch together have more bytes run window by window, so that none of these
  /// must be resident (swap/windows/window_rules.h). Decided by shape alone: results are the same under every budget,
  /// and those of convolutions' gradients (on a card, whose libraries choose kernels by shape, also of convolutions)
  /// differ from an unsplit operator's by rounding. kUnlimitedBytes, or the unified engine: nothing is split.
  int64_t split_bytes = kDefaultSplitBytes;
  /// Notified of every operator. Of one that is split, of its kernel on each window.
  std::shared_ptr<OperatorObserver> observer = nullptr;
  /// Wraps the two copy lanes ("copy out", "copy in"), to record, delay or fail copies. Asked of the Session that opens
  /// the device; others use its lanes.
  std::function<std::unique_ptr<Timeline>(std::unique_ptr<Timeline>, std::string_view lane)> decorate_timeline =
      nullptr;
  /// Wraps the engine that reads and writes the page file, to record, delay or fail operations. As decorate_timeline.
  std::function<std::unique_ptr<DiskIo>(std::unique_ptr<DiskIo>)> decorate_disk = nullptr;

  /// Throws BadRequest naming the field and its range.
  void validate() const;
};

}  // namespace spillway
