/// Where channels stand in memory.
#pragma once
#include <torch/nn/module.h>

#include <string_view>

namespace spillway {

enum class Layout : uint8_t {
  contiguous,     ///< channels before positions, as LibTorch makes them
  channels_last,  ///< channels next to each other, for images and volumes
};

/// Reads `contiguous` and `channels_last`. Throws BadRequest naming these.
Layout layout_named(std::string_view name);

/// The memory format of a tensor with this many dimensions; only 4 and 5 (images, volumes) have channels.
at::MemoryFormat memory_format(Layout layout, int64_t dimensions);

/// Lays out all parameters of `module` with 4 or 5 dimensions anew, in place: the weights of convolutions.
void lay_out(torch::nn::Module& module, Layout layout);

}  // namespace spillway
