/// The format of activations: their numbers, and the position of channels in memory. LibTorch-free.
#pragma once
#include <cstdint>
#include <string_view>

namespace spillway {

/// The type of numbers that autocast computes in: float32, bfloat16 or float16.
enum class Amp : uint8_t { off, bf16, fp16 };

/// Reads `off`, `bf16` or `fp16`. Throws BadRequest naming the value and these names.
Amp parse_amp(std::string_view name);
std::string_view name(Amp amp);  ///< the name that parse_amp() reads

/// The position of channels in memory.
enum class Layout : uint8_t {
  contiguous,     ///< channels before positions, as LibTorch makes them
  channels_last,  ///< channels next to each other, for images and volumes
};

/// Reads `contiguous` or `channels_last`. Throws BadRequest naming the value and these names.
Layout parse_layout(std::string_view name);
std::string_view name(Layout layout);  ///< the name that parse_layout() reads

}  // namespace spillway
