/// One hash for all weights: two runs agree bit for bit exactly when their hashes do.
#pragma once
#include <torch/nn/module.h>

#include <string>

namespace spillway::runtime {

/// Returns the SHA-256, in hexadecimal, of the raw bytes of all parameters and buffers in lexicographic order of their
/// names. Pages in one tensor at a time.
std::string weights_sha256(const torch::nn::Module& module);

}  // namespace spillway::runtime
