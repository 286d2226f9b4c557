/// The subcommands of `spillway bench`, and its largest pieces of work.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tools/cli/command.h"
#include "tools/cli/train_flags.h"

namespace spillway::tools {

/// Adds `bench allreduce`.
Run add_bench_allreduce(CLI::App& bench);

/// Adds `bench kfac`: what second order costs.
Run add_bench_kfac(CLI::App& bench);

/// Prints, and writes to `json_file` if it is named, the largest edge that can be trained under each budget, with
/// paging and without. Budgets are per cent of the unconstrained peak at the flags' edge. Every edge that is tried is
/// observed in a step without a budget, so the host's memory is the limit.
int bench_largest(TrainFlags flags, const std::vector<double>& percents, const std::string& json_file);

/// Times, prints and returns as rows {phase, seconds, gflops, bytes, …}: capture of a 3³ convolution's factors, with
/// and without patches, and separable; the preconditioning of ResNet-50's layers beside plain products of such sizes.
/// Interleaved; medians of `repeats`. Takes a minute or so.
nlohmann::json bench_kfac_parts(int repeats);

}  // namespace spillway::tools
