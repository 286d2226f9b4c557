/// Replicas: every rank holds all weights, and all ranks must hold the same bits.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "ddl/torch/comm.h"

namespace spillway::runtime {

/// Compares every rank's weights by their hash, `sha256`, after step `step`: one message from each rank.
/// Throws std::runtime_error on every rank when the hashes differ, naming the ranks, their hashes and numbers of
/// threads.
/// Collective. Throws CommError.
void require_equal_weights(const ddl::Comm& comm, const std::string& sha256, int64_t step);

/// Gives zeros as the gradient of a parameter to the ranks whose graph did not reach it, where another rank's graph
/// did. A parameter that no rank's graph reached stays without a gradient. Collective; `parameters` are alike on all
/// ranks. Throws CommError.
void complete_gradients(const std::vector<at::Tensor>& parameters, const ddl::Comm& comm);

}  // namespace spillway::runtime
