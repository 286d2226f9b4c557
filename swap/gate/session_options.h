/// The options of a Session.
#pragma once
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "core/bytes.h"
#include "swap/windows/split_sizes.h"

namespace spillway {

class OperatorObserver;
class Timeline;
namespace swap {
class DiskIo;
class OperatorKernels;
}  // namespace swap

/// How tensors move between device and host.
enum class Engine : uint8_t {
  /// Tensors move by the gate's copies into host memory of Spillway's own, on every device. The budget is guaranteed.
  gate,
  /// Tensors move by CUDA's Unified Memory, on a GPU. Tensors of 64 KiB and more are born in managed memory, and the
  /// same pager and schedule prefetch them both ways. Pointers stay valid for all code. An operator that needs more
  /// than the budget runs all the same, on the memory that the driver's page faults bring. The driver may then exceed
  /// the budget, and the counted peak says by how much. Nothing is replayed, split into windows, or put on disk.
  unified
};

/// Reads `gate` or `unified`. Throws BadRequest naming the value and these names.
Engine parse_engine(std::string_view name);
std::string_view name(Engine engine);  ///< the name that parse_engine() reads

/// The options of a Session.
struct SessionOptions {
  /// The device whose tensors are paged: "cpu", "cuda" or "cuda:N", one for all Sessions that are open together. On
  /// CUDA all operators must use the stream that is current when the first Session opens; tensors elsewhere are left
  /// alone. A program that does not link LibTorch's CUDA half opens the Session (or calls open_device) before it draws
  /// random numbers or runs backward. The reason is that LibTorch looks for GPUs only once.
  std::string device = "cpu";
  /// The engine. Sessions that are open together ask for the same one.
  Engine engine = Engine::gate;
  /// Device bytes that may be held at any instant, by all tensors of the process. Default: no limit. Sessions that are
  /// open together ask for the same budgets and small_page_bytes.
  int64_t budget_bytes = kUnlimitedBytes;
  /// Host bytes for pages that left the device. They are at most the limit of the process's memory: the machine's, or
  /// its cgroups' where that is less; half of it for a GPU, whose pages are pinned. Default: an equal part of that
  /// limit for each of `ranks_of_host`. When they are used up, pages go on to disk. Without a disk, the operator that
  /// needs room throws OutOfBudget.
  int64_t host_budget_bytes = kUnlimitedBytes;
  /// The number of processes of this host that open Sessions, and so share its memory's limit and its cores; at
  /// least 1. The Session that opens the device decides.
  int ranks_of_host = 1;
  /// The directory for the file of the pages that the host budget has no room for; best on a fast local disk. Empty: no
  /// file. With a directory, the host budget must be at least 1 MiB.
  std::filesystem::path disk_directory = {};
  /// True: follow a schedule from the second step of a kind on (early page-outs, prefetch, furthest next use). False:
  /// page on demand.
  bool prefetch = true;
  /// True: let the schedule run cheap deterministic operators (norms, activations, concatenations, upsampling) again
  /// instead of copying their results, where that is faster. Never changes a bit. Needs `prefetch`.
  bool replay = true;
  /// The size below which storages stay where they are.
  int64_t min_page_bytes = 4096;
  /// The size below which pages leave last when no schedule knows their next use, so that losses and metrics stay
  /// resident. On a GPU they always leave last, because their copies cost more than their bytes.
  int64_t small_page_bytes = 1 << 20;
  /// The bytes above which operators run window by window, counting their large tensors and scratch together, so that
  /// none of these must be resident (swap/windows/window_rules.h). Shape alone decides, so results are the same under
  /// every budget. Gradients of convolutions differ from an unsplit operator's by rounding. On a GPU convolutions do
  /// too, because its libraries choose kernels by shape. kUnlimitedBytes, or the unified engine: nothing is split.
  /// The default is 224 MiB on the CPU, and 8 GiB on a GPU.
  int64_t split_bytes = kSplitByDevice;
  /// The observer that is notified of every operator. For a split operator it is notified of the kernel on each window.
  std::shared_ptr<OperatorObserver> observer = nullptr;
  /// Is called with each error of the Session's own that leaves an operator, OutOfBudget and DiskError, on the
  /// operator's thread. It may throw another one in its place, as bindings of other languages do. nullptr: errors are
  /// thrown as they are.
  std::function<void(const std::exception&)> translate_error = nullptr;
  /// Runs operators in LibTorch's place; nullptr: LibTorch's own kernels run.
  std::shared_ptr<swap::OperatorKernels> kernels = nullptr;
  /// Wraps the two copy lanes ("copy out", "copy in"), to record, delay or fail copies. The Session that opens the
  /// device decides; other Sessions use its lanes.
  std::function<std::unique_ptr<Timeline>(std::unique_ptr<Timeline>, std::string_view lane)> decorate_timeline =
      nullptr;
  /// Wraps the engine that reads and writes the page file, to record, delay or fail operations. The Session that opens
  /// the device decides, as with decorate_timeline.
  std::function<std::unique_ptr<swap::DiskIo>(std::unique_ptr<swap::DiskIo>)> decorate_disk = nullptr;

  /// Throws BadRequest naming the field and its range.
  void validate() const;
};

}  // namespace spillway
