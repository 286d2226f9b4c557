/// The user's interface: a byte budget on everything that LibTorch allocates, opened in two lines.
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

class Ledger;
class MessageListener;
namespace swap {
struct Need;
class Pager;
struct Schedule;
struct StepTrace;
class SessionState;
}  // namespace swap

/// Figures of a Session. All but the last two describe the device, so they cover all Sessions that are open on it.
struct SessionStats {
  PagerStats pager;
  int64_t peak_bytes = 0;  ///< exceeds the budget only with Engine::unified
  BytesByCategory peak_by_category{};
  int64_t library_bytes = 0;    ///< part of what is held now that libraries hold on a GPU, so that it cannot leave
  int64_t host_peak_bytes = 0;  ///< upper bound: host copies, and managed memory that was absent
  int64_t disk_peak_bytes = 0;
  int64_t bytes_to_disk = 0;
  int64_t bytes_from_disk = 0;
  int64_t operators = 0;   ///< seen inside steps
  int64_t deviations = 0;  ///< steps that left their schedule
};

/// Pages the tensors of its thread under a byte budget while it lives. Every operator on the thread, and in autograd's
/// work for the thread, passes Spillway's gate. The gate makes arguments resident before a kernel runs, and the
/// device's counted bytes never exceed the budget. Results equal those of unlimited memory, bit for bit. Closing brings
/// every tensor back to the device and lifts the budget. The thread's next Session can page the tensors that stay, and
/// those that the thread makes in between (docs/design/sessions.md says which).
///
///     spillway::Session session({.budget_bytes = spillway::parse_bytes("8GiB")});
///     for (auto& batch : loader) {
///       auto step = session.step();
///       … forward, backward, optimizer, as before …
///     }
///
/// Thread: a Session is made, used and closed on one thread, which has no other Session, and in one scope of LibTorch's
/// that puts the thread's state back at its end (c10::InferenceMode, backward's hooks); see enter() for threads that
/// help it. When that thread has ended, any other one may close the Session. Sessions on several threads share the
/// device: one budget, one pager, one operator at a time. Collectives and other operators outside aten run beside that
/// operator. So the budget must hold the neediest operator of all. Each Session has its own steps, schedules and
/// observer. When one closes while others are open, its tensors stay under the budget. They leave the device and raise
/// the clear error when touched, until they are lent (spillway::resident), used by another Session, or the last Session
/// closes. Errors: an operator that cannot fit throws OutOfBudget out of the user's call. The tensors are intact,
/// except those that an operator in windows had begun to change; the error says so then. A CUDA graph's capture,
/// Inductor's operators and a Session inside a trace of torch.compile are refused. Spillway does not see a DLPack
/// export held across operators, the replay of a graph, or a compiled kernel that is called directly, so they must not
/// be used inside a Session.
class Session {
 public:
  /// Opens the Session. Throws BadRequest for bad options (a directory that cannot be used among them), and for options
  /// that differ from an open Session's. Throws DeviceError when the device cannot be had, OutOfBudget when more than
  /// the budget is held and cannot leave, and std::logic_error when this thread has a Session or traces operators.
  explicit Session(SessionOptions options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// The scope of one training step; its destructor (or finish()) ends it. A step that an exception leaves is
  /// forgotten.
  class Step {
   public:
    ~Step();
    Step(Step&& other) noexcept;
    Step& operator=(Step&&) = delete;
    /// Ends the step and plans the next one of its kind. Throws OutOfBudget when libraries took memory on the device
    /// that the budget has no room for; the step is forgotten then.
    void finish();
    /// Ends the step as an exception does, for callers whose exceptions are not C++'s.
    void forget();

   private:
    friend class Session;
    explicit Step(Session* session);
    Session* session_;
    int exceptions_;
  };
  /// Starts a step. Steps that do the same work have the same `kind`; each kind is traced and scheduled on its own.
  [[nodiscard]] Step step(std::string_view kind = "step");

  /// The scope in which the gate is open on another thread of the user's. Operators of that thread page on demand.
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
  /// Starts counting the peak anew.
  void reset_peak();
  /// Returns a listener that adds messages to the trace of the open step. For steps that are run dry: the times of a
  /// real step include its waits for messages.
  MessageListener& messages();
  /// Returns the trace of the last step of a kind that was planned; nullptr before one has ended. Valid until the next
  /// step.
  const swap::StepTrace* trace(std::string_view kind = "step") const;
  /// Returns the schedule that was made of the kind's trace; nullptr before one has ended. Valid until the next step.
  const swap::Schedule* schedule(std::string_view kind = "step") const;
  /// Returns the traces of all kinds of step that were planned.
  std::vector<const swap::StepTrace*> traces() const;
  /// Returns the need of the neediest operator so far on the Session's own thread. No budget below its bytes can repeat
  /// the work that was done.
  const swap::Need& neediest() const;
  swap::Pager& pager();
  Ledger& ledger();

 private:
  std::unique_ptr<swap::SessionState> state_;
};

/// Keeps a tensor's storages resident, and at the same address, while it lives.
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

/// Lends the tensor's bytes for reading and writing through raw pointers: they are resident, and dirty from now on.
/// Works for tensors that are not paged, too: they do not become pages meanwhile. Inside an operator, only its own
/// arguments may be lent. Bytes written through a pointer that was not lent are lost when the tensor leaves the device.
/// Throws OutOfBudget when the bytes do not fit beside the leased ones.
[[nodiscard]] Resident resident(const at::Tensor& tensor);
/// Lends the tensor's bytes for reading only: a host copy stays valid, so the tensor can leave again without being
/// copied.
[[nodiscard]] Resident resident_read(const at::Tensor& tensor);
/// Says that the tensor's bytes are about to be written through a raw pointer, before the next operator. Bytes that are
/// away stay away. Those that are there are copied when they leave, so that the write is not lost.
void note_raw_write(const at::Tensor& tensor);

}  // namespace spillway
