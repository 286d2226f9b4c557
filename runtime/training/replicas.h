/// Replicas: every rank holds all weights, and all ranks must hold the same bits.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "ddl/torch/comm.h"

namespace spillway {

/// Compares every rank's weights by their hash, `sha256`, after step `step`: one message from each rank.
/// Throws std::runtime_error on every rank where they differ, naming the ranks, their hashes and numbers of threads.
/// Collective. Throws CommError.
void require_equal_weights(const ddl::Comm& comm, const std::string& sha256, int64_t step);

/// Gives a parameter that some rank's graph reached a gradient on the others too: zeros. A parameter that no rank's
/// graph reached stays without one. Collective; `parameters` are alike on all ranks. Throws CommError.
void complete_gradients(const std::vector<at::Tensor>& parameters, const ddl::Comm& comm);

}  // namespace spillway
