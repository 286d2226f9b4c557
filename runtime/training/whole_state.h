/// The state of a run over its ranks: as if one rank had it where the model is cut, and checked where ranks share it.
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

/// Compares the weights of ranks that must have the same bits after step `step`, by their hash, `sha256`: one message
/// from each rank. Throws std::runtime_error on every rank when the hashes differ, naming the ranks, their hashes and
/// numbers of threads. Collective. Throws CommError.
void require_equal_weights(const ddl::Comm& comm, const std::string& sha256, int64_t step);

/// Returns the rows of all ranks by ascending number, from each rank's rows [n, k] and their numbers. All ranks' rows
/// have one type and one k. Collective. Throws CommError.
at::Tensor gather_rows(ddl::Communicator& comm, const at::Tensor& rows, const std::vector<int64_t>& numbers);

/// Returns the number of parameters of the whole model. Collective where it is cut.
int64_t count_parameters(const torch::nn::Module& own, const RunContext& context);

}  // namespace spillway::runtime
