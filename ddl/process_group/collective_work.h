/// The handles that torch.distributed's users wait for.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace spillway::ddl {

class CallbackThreads;
class WaitingSince;

/// A collective that another thread completes.
class CollectiveWork : public c10d::Work {
 public:
  /// `title` is the name under which torch's profiler shows it; it lives as long as the process. `outputs` are the
  /// tensors that the future will hold. `callbacks` runs what is attached to the future, and lives until complete()
  /// has returned.
  CollectiveWork(int rank, c10d::OpType type, const char* title, const std::vector<at::Tensor>& inputs,
                 std::vector<at::Tensor> outputs, CallbackThreads& callbacks);

  /// Ends the work, with an error or without one. Wakes those who wait. Callbacks of the future run on a thread of
  /// their own, because they may wait for other works. Called once.
  void complete(const std::exception_ptr& error);

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  std::vector<at::Tensor> result() override { return outputs_; }

 private:
  void complete_future(const std::exception_ptr& error);

  const std::vector<at::Tensor> outputs_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  CallbackThreads& callbacks_;
  std::mutex future_mutex_;
  bool future_is_known_ = false;  ///< somebody has it, and may have attached callbacks
};

/// A message of send or recv.
class MessageWork final : public CollectiveWork {
 public:
  using CollectiveWork::CollectiveWork;

  /// Returns the clock that the first wait() begins.
  const std::shared_ptr<WaitingSince>& waiting() const noexcept { return waiting_; }
  /// Has `deliver` called when the message has come, once without an error, on a thread that waits or asks. So bytes
  /// reach a tensor in the order of that thread's operators, and through its Session. Call it before the message
  /// starts. The future is then refused, because it would be complete before the tensor is filled.
  void deliver_to_waiter(std::function<void()> deliver);

  bool wait(std::chrono::milliseconds timeout) override;
  bool isCompleted() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  void deliver();

  const std::shared_ptr<WaitingSince> waiting_ = std::make_shared<WaitingSince>();
  std::mutex deliver_mutex_;
  std::function<void()> deliver_;  ///< nullptr once it was called
  bool has_future_ = true;
};

}  // namespace spillway::ddl
