/// What a user touches: a byte budget on everything LibTorch allocates, in two lines.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/bytes.h"
#include "core/timeline.h"
#include "swap/pager/pager.h"
#include "swap/schedule/step_trace.h"
#include "swap/tiers/disk_io.h"
#include "swap/windows/split_sizes.h"

namespace c10 {
class OperatorHandle;
}

namespace spillway {

/// Sees every operator that the gate runs, in order, on the thread that runs it. For reports and for checking doubles.
class OperatorObserver {
 public:
  virtual ~OperatorObserver() = default;
  /// Arguments are on top of the stack, resident.
  virtual void before(const c10::OperatorHandle&, const torch::jit::Stack&) {}
  /// Results are on top of the stack, registered; the leases still hold.
  virtual void after(const c10::OperatorHandle&, const torch::jit::Stack&) {}
  /// The leases have ended; storages may leave.
  virtual void released(Pager&) {}
};

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

/// Of the device, so of all Sessions open on it, but for the last two.
struct SessionStats {
  PagerStats pager;
  int64_t peak_bytes = 0;  ///< beyond the budget only with Engine::unified
  BytesByCategory peak_by_category{};
  int64_t host_peak_bytes = 0;  ///< at most: of host copies and of managed memory that was away
  int64_t disk_peak_bytes = 0;
  int64_t bytes_to_disk = 0;
  int64_t bytes_from_disk = 0;
  int64_t operators = 0;   ///< seen inside steps
  int64_t deviations = 0;  ///< steps that left their schedule
};

/// While it lives, every operator on its thread (and in autograd's work for it) passes Spillway's gate: arguments are
/// made resident before a kernel runs, and the device's counted bytes never exceed the budget. Results are those of
/// unlimited memory, bit for bit. Closing brings every tensor home and lifts the budget.
///
///     spillway::Session session({.budget_bytes = spillway::parse_bytes("8GiB")});
///     for (auto& batch : loader) {
///       auto step = session.step();
///       … forward, backward, optimizer, as before …
///     }
///
/// Thread: made, used and closed on one thread, which has no other Session; see enter() for threads that help it.
/// Sessions on several threads share the device: one budget, one pager, one operator at a time (collectives and
/// other operators outside aten run beside it), so the budget must hold the neediest operator of all. Each has its own
/// steps, schedules and observer. When one closes while others are open, its tensors stay under the budget: they leave
/// the device and raise the clear error when touched, until they are lent (spillway::resident), used by another
/// Session, or the last Session closes. Errors: an operator that cannot fit throws OutOfBudget out of the user's call;
/// the tensors are intact, but for those that an operator in windows had begun to change, which the error says. Not
/// seen, so not to be used inside: DLPack exports held across operators, CUDA graph capture, torch.compile's kernels.
class Session {
 public:
  /// Throws BadRequest for bad options (a directory that cannot be used among them) and for others than those of a
  /// Session that is open, DeviceError when the device cannot be had, OutOfBudget when more is held already,
  /// std::logic_error when this thread has one.
  explicit Session(SessionOptions options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// The scope of one training step; its destructor (or finish()) ends it. Left by an exception, the step is forgotten.
  class Step {
   public:
    ~Step();
    Step(Step&& other) noexcept;
    Step& operator=(Step&&) = delete;
    void finish();

   private:
    friend class Session;
    explicit Step(Session* session);
    Session* session_;
    int exceptions_;
  };
  /// Steps that do the same have the same `kind`; each kind is traced and scheduled on its own.
  [[nodiscard]] Step step(std::string_view kind = "step");

  /// Opens the gate on another thread of the user's while the result lives there. Its operators page on demand.
  class Entry {
   public:
    ~Entry();
    Entry(Entry&&) noexcept;

   private:
    friend class Session;
    struct Guards;
    explicit Entry(std::unique_ptr<Guards> guards);
    std::unique_ptr<Guards> guards_;
  };
  [[nodiscard]] Entry enter();

  SessionStats stats() const;
  /// Starts the peak's count anew.
  void reset_peak();
  /// The trace of the last step of a kind that was planned; nullptr before one has ended. Valid until the next step.
  const StepTrace* trace(std::string_view kind = "step") const;
  /// The same for the schedule made of it.
  const struct Schedule* schedule(std::string_view kind = "step") const;
  /// The traces of all kinds of step that were planned.
  std::vector<const StepTrace*> traces() const;
  /// The neediest operator so far, of the Session's own thread: no budget below its bytes can repeat what was done.
  const Need& neediest() const;
  Pager& pager();
  Ledger& ledger();

  struct State;

 private:
  std::unique_ptr<State> state_;
};

/// Keeps a tensor's storages resident, and where they are, while it lives.
class Resident {
 public:
  ~Resident();
  Resident(Resident&& other) noexcept;
  Resident& operator=(Resident&&) = delete;

 private:
  friend Resident resident(const at::Tensor&);
  friend Resident resident_read(const at::Tensor&);
  Resident(const at::Tensor& tensor, bool write);
  std::shared_ptr<void> device_;             // outlives the Session if need be
  std::vector<std::shared_ptr<void>> held_;  // storages
  Pager* pager_ = nullptr;
  std::vector<PageUse> uses_;
};

/// Lends the tensor's bytes for reading and writing through raw pointers: resident, and dirty from now on. Works for
/// tensors that are not paged, too: they will not be meanwhile. Inside an operator, for its own arguments alone. Bytes
/// written through a pointer that was not lent are lost when the tensor leaves the device. Throws OutOfBudget when they
/// do not fit beside what is leased.
[[nodiscard]] Resident resident(const at::Tensor& tensor);
/// The same for reading only: a host copy stays valid, so the tensor can leave again without being copied.
[[nodiscard]] Resident resident_read(const at::Tensor& tensor);

}  // namespace spillway
