/// Activation checkpointing: a block whose inside is forgotten after forward, and computed again for backward.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace spillway {

/// What `block` makes of `inputs`, keeping only these for backward, which runs the block again with the random numbers
/// of the first time. Gradients of parameters inside are accumulated as always. The block must depend on nothing that
/// changes meanwhile.
at::Tensor recomputed(std::function<at::Tensor(const std::vector<at::Tensor>&)> block, std::vector<at::Tensor> inputs);

}  // namespace spillway
