/// The handles that torch.distributed's users wait for.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <exception>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace spillway::ddl {

/// A collective, or a message, that another thread completes.
class CollectiveWork final : public c10d::Work {
 public:
  /// `title` is the name under which torch's profiler shows it; it lives as long as the process. `outputs` are the
  /// tensors that the future will hold.
  CollectiveWork(int rank, c10d::OpType type, const char* title, const std::vector<at::Tensor>& inputs,
                 std::vector<at::Tensor> outputs);

  /// Ends the work, with an error or without one. Wakes those who wait, and runs the callbacks of the future on this
  /// thread. Called once.
  void complete(const std::exception_ptr& error);

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  std::vector<at::Tensor> result() override { return outputs_; }

 private:
  const std::vector<at::Tensor> outputs_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace spillway::ddl
