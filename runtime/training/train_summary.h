/// What a run did, in numbers.
#pragma once
#include <cstdint>
#include <string>

#include "runtime/results/train_result.h"

namespace spillway {

class TrainingRun;
struct RunContext;
namespace kfac {
class Kfac;
}

/// Returns what K-FAC did in a run; `reason` says why gradient workers are that `fraction` of `world` ranks.
KfacSummary summarise(const kfac::Kfac& kfac, int64_t world, double fraction, const std::string& reason);

/// Fills in what is known at the end of a run: peaks, bytes moved, predictions, allreduces. Collective.
void finish(TrainResult& result, TrainingRun& run, const RunContext& context);

}  // namespace spillway
