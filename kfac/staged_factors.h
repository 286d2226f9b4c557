/// The statistics that backward has staged for the layers of a Kfac.
#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "core/clock.h"
#include "core/hash.h"
#include "kfac/comm/overlapped_reduction.h"
#include "kfac/factors/capture.h"
#include "kfac/factors/factors.h"

namespace spillway::kfac {

/// The staged statistics that a Kfac shares with its hooks in the graph. The hooks may outlive the Kfac and run on
/// autograd's threads.
struct StagedFactors {
  uint64_t seed = 0;             ///< seed of this update's lattices
  std::vector<int64_t> numbers;  ///< numbers of the layers in the model, for that seed
  std::mutex mutex;
  std::vector<LayerFactors> layers;
  std::unique_ptr<OverlappedReduction> early;  ///< only with overlap_factors on several ranks
  double seconds = 0;

  void stage(const Captured& captured) {
    std::lock_guard lock(mutex);
    Stopwatch watch(seconds);
    layers[captured.layer].stage(captured, hash_in(seed, static_cast<uint64_t>(numbers[captured.layer])));
    if (early) early->staged(captured.layer, layers);
  }
};

}  // namespace spillway::kfac
