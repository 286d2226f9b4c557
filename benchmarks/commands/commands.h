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

/// Adds `bench kfac`, which measures the cost of second-order preconditioning.
Run add_bench_kfac(CLI::App& bench);

/// Prints, and writes to `json_file` if it is named, the largest edge that can be trained under each budget, with
/// paging and without. Budgets are percents of the unconstrained peak at the flags' edge. Every edge that is tried is
/// observed in a step without a budget, so the host's memory is the limit.
int bench_largest(TrainFlags flags, const std::vector<double>& percents, const std::string& json_file);

/// Times the parts of K-FAC, prints them, and returns rows {phase, seconds, gflops, bytes, …}. One part is the capture
/// of a 3³ convolution's factors: with patches, without patches, and separable. Another is the preconditioning of
/// ResNet-50's layers beside plain products of such sizes, and the last is decompositions. Measurements are
/// interleaved, and times are medians of `repeats`. Takes about a minute on a CPU.
nlohmann::json bench_kfac_parts(const std::string& device, int repeats);

}  // namespace spillway::tools
