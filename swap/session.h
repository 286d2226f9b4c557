/// What a user touches: a byte budget on everything LibTorch allocates, in two lines.
#pragma once
#include <memory>
#include <string_view>
#include <vector>

#include "core/category.h"
#include "swap/gate/session_options.h"
#include "swap/pager/pager_stats.h"

namespace at {
class Tensor;
}

namespace spillway {

struct Need;
class Ledger;
class Pager;
struct Schedule;
struct StepTrace;
class SessionState;

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
  const Schedule* schedule(std::string_view kind = "step") const;
  /// The traces of all kinds of step that were planned.
  std::vector<const StepTrace*> traces() const;
  /// The neediest operator so far, of the Session's own thread: no budget below its bytes can repeat what was done.
  const Need& neediest() const;
  Pager& pager();
  Ledger& ledger();

 private:
  std::unique_ptr<SessionState> state_;
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
  struct Leases;
  std::unique_ptr<Leases> leases_;
};

/// Lends the tensor's bytes for reading and writing through raw pointers: resident, and dirty from now on. Works for
/// tensors that are not paged, too: they will not be meanwhile. Inside an operator, for its own arguments alone. Bytes
/// written through a pointer that was not lent are lost when the tensor leaves the device. Throws OutOfBudget when they
/// do not fit beside what is leased.
[[nodiscard]] Resident resident(const at::Tensor& tensor);
/// The same for reading only: a host copy stays valid, so the tensor can leave again without being copied.
[[nodiscard]] Resident resident_read(const at::Tensor& tensor);

}  // namespace spillway
