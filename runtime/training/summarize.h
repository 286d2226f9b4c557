/// Summaries of a run, in numbers.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "kfac/factors/layers.h"
#include "runtime/results/train_result.h"

namespace spillway::kfac {
class Kfac;
}

namespace spillway::runtime {

class TrainingRun;
struct RunContext;

/// Returns the modules of the whole model that K-FAC leaves alone. Collective where it is cut. Throws CommError.
std::vector<kfac::SkippedLayer> left_alone(const kfac::Kfac& kfac, const RunContext& context);

/// Returns a summary of K-FAC's work in a run, of the whole model: counts and bytes of all stages, and seconds that are
/// means over their ranks. `reason` says why gradient workers are that `fraction` of the ranks with the same weights.
/// Collective. Throws CommError.
KfacSummary summarize(const kfac::Kfac& kfac, const RunContext& context, double fraction, const std::string& reason);

/// Fills in the numbers that are known at the end of a run: peaks, bytes moved, predictions, allreduces. Collective.
void finish(TrainResult& result, TrainingRun& run, const RunContext& context);

}  // namespace spillway::runtime
