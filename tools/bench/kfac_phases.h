/// The parts of K-FAC by themselves, each against what it replaces.
#pragma once
#include <nlohmann/json_fwd.hpp>

namespace spillway::tools {

/// Times, prints and returns as rows {phase, seconds, gflops, bytes, …}: capture of a 3³ convolution's factors, with
/// and without patches, and separable; the preconditioning of ResNet-50's layers beside plain products of such sizes.
/// Interleaved; medians of `repeats`. Takes a minute or so.
nlohmann::json bench_kfac_parts(int repeats);

}  // namespace spillway::tools
