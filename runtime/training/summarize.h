/// Summaries of a run, in numbers.
#pragma once
#include <cstdint>
#include <string>

#include "runtime/results/train_result.h"

namespace spillway::kfac {
class Kfac;
}

namespace spillway::runtime {

class TrainingRun;
struct RunContext;

/// Returns a summary of K-FAC's work in a run. `reason` says why gradient workers are that `fraction` of `world` ranks.
KfacSummary summarize(const kfac::Kfac& kfac, int64_t world, double fraction, const std::string& reason);

/// Fills in the numbers that are known at the end of a run: peaks, bytes moved, predictions, allreduces. Collective.
void finish(TrainResult& result, TrainingRun& run, const RunContext& context);

}  // namespace spillway::runtime
