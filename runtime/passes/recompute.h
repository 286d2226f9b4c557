/// Activation checkpointing: tensors inside a block are dropped after forward and computed again for backward.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace spillway::runtime {

/// Returns the result of `block` on `inputs`, keeping only the inputs for backward. Backward runs the block again with
/// the random numbers of the first time. Gradients of parameters inside are accumulated as always. The block must
/// depend on nothing that changes between the two runs.
at::Tensor recomputed(std::function<at::Tensor(const std::vector<at::Tensor>&)> block, std::vector<at::Tensor> inputs);

}  // namespace spillway::runtime
