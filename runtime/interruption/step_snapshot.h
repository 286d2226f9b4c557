/// The state that forward changes beside the weights.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <utility>
#include <vector>

#include "runtime/passes/random_state.h"

namespace spillway::runtime {

/// Copies of a module's buffers (running statistics) and of the random generators, for a forward pass that is to leave
/// no trace: in a step that is left, or to measure a loss again. Weights, optimizer state and K-FAC's running averages
/// change only when gradients are applied, so they need none. The copies are host memory that no budget counts. Cost: a
/// copy of each buffer; from a GPU it goes to pinned memory in the order of the stream, and nothing waits for it.
class StepSnapshot {
 public:
  StepSnapshot(const torch::nn::Module& module, c10::Device device);
  /// Gives buffers and generators the bits that they had.
  void restore() const;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;  ///< the live one, and its copy
  RandomState random_;
};

}  // namespace spillway::runtime
