/// Times of kernels and collectives, for dry runs of one rank of a cluster.
#pragma once
#include <memory>
#include <utility>

#include "swap/shapes/shape_kernels.h"

namespace spillway::runtime {

/// Takes the times of collectives from the costs of their communicator's links (ddl/allreduce/cost_model.h), and others
/// from `kernels`, `slowdown` times as long. A rank waits for no other rank in them. Reducing parts at their owners,
/// and each half of an allreduce, takes half of an allreduce's time.
class ClusterTimes final : public swap::KernelTimes {
 public:
  explicit ClusterTimes(std::shared_ptr<swap::KernelTimes> kernels, double slowdown = 1)
      : kernels_(std::move(kernels)), slowdown_(slowdown) {}
  double seconds(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) override;
  double gap_seconds(const c10::OperatorHandle& op) const override { return slowdown_ * kernels_->gap_seconds(op); }
  bool on_gpu() const override { return kernels_->on_gpu(); }

 private:
  const std::shared_ptr<swap::KernelTimes> kernels_;
  const double slowdown_;
};

}  // namespace spillway::runtime
