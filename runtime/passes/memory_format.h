/// The position of channels in memory.
#pragma once
#include <torch/nn/module.h>

#include <cstdint>

#include "runtime/passes/tensor_format.h"

namespace spillway::runtime {

/// Returns the memory format of a tensor with this many dimensions. Only 4 and 5 dimensions (images, volumes) have
/// channels.
at::MemoryFormat memory_format(Layout layout, int64_t dimensions);

/// Changes the layout of all parameters of `module` with 4 or 5 dimensions, in place. They are the weights of
/// convolutions.
void to_memory_format(torch::nn::Module& module, Layout layout);

}  // namespace spillway::runtime
