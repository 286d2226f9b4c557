/// The backend `spillway` of torch.distributed.
#pragma once
#include <ATen/core/Tensor.h>
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "ddl/comm/communicator.h"
#include "ddl/torch/comm.h"

namespace spillway::ddl {

class BackgroundQueue;
class CallbackThreads;
class CollectiveWork;
class PointToPoint;

/// The options of a ProcessGroup.
struct ProcessGroupOptions {
  /// Measures the links when the group is made, some 50 ms, so that plans suit them. The same on every rank.
  bool calibrate = true;
  /// Returns true where a collective must have ended before its call returns, and where a message may not use the
  /// caller's tensor afterwards, because it may move. It is called on the caller's thread. nullptr: nowhere.
  std::function<bool()> must_block = nullptr;
  /// Keeps a tensor's bytes at their address while the result lives; `written`: they will be written. It is called for
  /// what is worked on after its call has returned, and may throw. nullptr: nothing moves.
  std::function<std::shared_ptr<void>(const at::Tensor& tensor, bool written)> hold = nullptr;
  /// Returns the error with which a work is to fail, for callers in another language. It is called on any thread.
  /// nullptr: the error stays as it is.
  std::function<std::exception_ptr(const std::exception_ptr& error)> translate_error = nullptr;
};

/// A group of ranks as torch.distributed uses it. Collectives run one after another on a thread of their own, in the
/// order of the calls; those of GPUs' tensors and those that must block run on the caller's thread. Messages of send
/// and recv run beside them and never block. Sums of a kind have the same bits on every rank, whatever the levels.
/// Tensors of the CPU and of GPUs; those of a GPU are reduced in the order of its current stream, and the host waits
/// for that. What Spillway lacks is refused by torch's own error, which names the collective: sparse tensors, recv from
/// any rank, reductions other than SUM, AVG, MIN and MAX.
/// A call that this rank cannot begin throws at the call, from wait() or from the future, and the group lives on. When
/// memory was missing, the other ranks wait until this one makes the call after all. A call whose arguments do not suit
/// counts as made: where other ranks have begun it, this rank's next collective ends the group with a CommError on all
/// ranks. An operation that fails later ends the group on all ranks: all others throw CommError.
/// Operations' own timeouts are not looked at; the communicator's deadline counts, for messages from wait() on. A child
/// of fork() cannot use the group. Thread-safe; threads that share a group see to it that all ranks make the same calls
/// in the same order.
class ProcessGroup final : public c10d::Backend {
 public:
  /// Collective. `comm` is this object's alone. Throws CommError.
  explicit ProcessGroup(const std::shared_ptr<Communicator>& comm, ProcessGroupOptions options = {});
  ~ProcessGroup() override;

  const std::string getBackendName() const override { return "spillway"; }  // NOLINT: torch's signature
  const Communicator& communicator() const { return *comm_->communicator; }
  /// Returns what operators take, for callers who have the group to themselves and call none of its collectives.
  const Comm& comm() const { return comm_; }
  /// Makes a further group over the same ranks, with messages of its own, that lives and dies with this one
  /// (Communicator::duplicate()). Collective. Throws CommError.
  c10::intrusive_ptr<ProcessGroup> duplicate();
  /// Returns how the group reduces vectors of so many bytes, for people.
  std::string explain(int64_t bytes);

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allreduce_coalesced(std::vector<at::Tensor>& tensors,
                                                     const c10d::AllreduceCoalescedOptions& options) override;
  c10::intrusive_ptr<c10d::Work> reduce(std::vector<at::Tensor>& tensors, const c10d::ReduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allgather_into_tensor_coalesced(std::vector<at::Tensor>& outputs,
                                                                 std::vector<at::Tensor>& inputs,
                                                                 const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> gather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                                        const c10d::GatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
                                         const c10d::ScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter(std::vector<at::Tensor>& outputs,
                                                std::vector<std::vector<at::Tensor>>& inputs,
                                                const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter_tensor_coalesced(std::vector<at::Tensor>& outputs,
                                                                 std::vector<at::Tensor>& inputs,
                                                                 const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_sizes, std::vector<int64_t>& input_sizes,
                                               const c10d::AllToAllOptions& options) override;
  c10::intrusive_ptr<c10d::Work> alltoall(std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
                                          const c10d::AllToAllOptions& options) override;
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int peer, int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int peer, int tag) override;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override;
  /// Waits for the collectives that were called, at most kShutdownGrace. Those that have not ended then fail, here and
  /// on the other ranks, because this rank will make no further call.
  void shutdown() override;
  /// Ends the group on all ranks: what is under way fails.
  void abort() override;
  /// Ends this rank's part in the group, as the destructor does: what is under way fails, and its tensors are dropped.
  /// Later calls are refused. Meant for an interpreter that ends, because threads that drop its tensors need it.
  void leave();

  /// Numbers are agreed on by counting, so there is nothing to exchange.
  void setSequenceNumberForGroup() override {}
  /// Returns how many collectives this rank has called.
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  c10::intrusive_ptr<Options> getBackendOptions() override;
  /// Changes the deadline of collectives and messages, also of those under way.
  void setTimeout(std::chrono::milliseconds timeout) override;

  /// The longest wait of shutdown().
  static constexpr std::chrono::seconds kShutdownGrace{10};

 private:
  using Job = std::function<void(const Comm&)>;
  c10::intrusive_ptr<c10d::Work> submit(c10d::OpType type, const char* title, const std::vector<at::Tensor>& inputs,
                                        std::vector<at::Tensor> outputs, Job job);
  /// Returns what a check of arguments returns. A call that it refuses counts as made (blocking_collectives.h).
  template <class Check>
  auto checked(const Check& check);
  /// Runs a job, and completes its work.
  void run(const Job& job, CollectiveWork& work);
  /// Completes a work with the translated error, or with none.
  void complete(CollectiveWork& work, const std::exception_ptr& error) const;
  /// Keeps tensors where they are while the result lives.
  std::vector<std::shared_ptr<void>> hold(const std::vector<at::Tensor>& tensors, bool written) const;
  bool must_block() const { return options_.must_block && options_.must_block(); }
  void require_usable() const;
  void drain();

  const ProcessGroupOptions options_;
  const pid_t process_;
  std::mutex turn_;  ///< held while a collective joins the queue or runs on its caller's thread
  std::atomic<uint64_t> sequence_ = 0;
  std::unique_ptr<CallbackThreads> callbacks_;
  const Comm comm_;  ///< the queue's thread uses it; others while nothing is queued
  std::unique_ptr<PointToPoint> messages_;
  std::unique_ptr<BackgroundQueue> queue_;  ///< last member, because its jobs use the others
};

}  // namespace spillway::ddl
