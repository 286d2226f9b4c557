/// The state of a run whose model may be cut over ranks, as if one rank had it.
#pragma once
#include <string>
#include <vector>

#include "runtime/training/checkpoint.h"
#include "runtime/training/run_context.h"

namespace spillway::runtime {

/// Returns the tensors of all stages, from those of this rank. A tensor that several stages have is there once. Their
/// order is the same on every rank. Collective where the model is cut. Throws CommError.
std::vector<StateTensor> whole_state(std::vector<StateTensor> own, const RunContext& context);

/// Returns the hash of all weights (weights_sha256()) of a model that is cut over ranks, from the tensors of all
/// stages, each of which is a parameter or a buffer. The same on every rank. Collective. Throws CommError.
std::string weights_sha256(std::vector<StateTensor> weights, const ddl::Comm& comm);

/// Returns the number of parameters of the whole model. Collective where it is cut.
int64_t count_parameters(const torch::nn::Module& own, const RunContext& context);

}  // namespace spillway::runtime
