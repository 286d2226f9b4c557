/// The state that forward changes before a step is certain.
#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <utility>
#include <vector>

namespace spillway {

/// Copies of a module's buffers (running statistics) and of the random generators, which a step that is left gets back.
/// Weights, optimizer state and K-FAC's running averages change only when gradients are applied, so they need none. The
/// copies are plain host memory, which no budget counts. Cost: a copy of each buffer, and on a GPU a synchronization
/// for each.
class StepSnapshot {
 public:
  StepSnapshot(const torch::nn::Module& module, c10::Device device);
  /// Gives buffers and generators the bits that they had.
  void restore();

 private:
  std::vector<std::pair<at::Tensor, std::vector<std::byte>>> buffers_;
  std::vector<std::pair<at::Generator, at::Generator>> generators_;  ///< the live one, and its copy
};

}  // namespace spillway
