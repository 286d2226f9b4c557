/// The statistics that backward has staged for the layers of a Kfac.
#pragma once
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "core/hash.h"
#include "kfac/comm/overlapped_reduction.h"
#include "kfac/factors/capture.h"
#include "kfac/factors/factors.h"
#include "kfac/plan/place_factors.h"

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
  bool holds = false;  ///< true while what backward shows is kept until stage_held()

  /// Returns the running average of a factor [count, side, side]: a new tensor. It is undefined where this rank holds
  /// none.
  at::Tensor average(const FactorId& id) const {
    const auto& running = layers[id.layer].running();
    return running.empty() ? at::Tensor() : running.at(id.factor).load();
  }
  /// Returns the running averages of factors of one side, which this rank holds, one behind the other: a new tensor.
  at::Tensor averages(const std::vector<FactorId>& ids) const {
    std::vector<StoredTriangle> all;
    for (const FactorId& id : ids) all.push_back(layers[id.layer].running().at(id.factor));
    return joined(all).load();
  }

  /// Keeps what backward shows of a use of a layer.
  void hold(const Captured& captured, int64_t micro_batch) {
    std::lock_guard lock(mutex);
    if (!fits(captured)) return;
    Held& use = held[{captured.layer, micro_batch}].emplace_back();
    use.captured = captured;
    held_bytes += use.bytes();
    held_peak_bytes = std::max(held_peak_bytes, held_bytes);
    if (captured.geometry) use.geometry = *captured.geometry;
  }

  /// Stages what was kept of a layer and micro-batch, and lets go of it.
  void stage_held(size_t layer, int64_t micro_batch, uint64_t seed_of_refresh) {
    std::lock_guard lock(mutex);
    const auto found = held.find({layer, micro_batch});
    if (found == held.end()) return;
    Stopwatch watch(seconds);
    for (Held& use : found->second) {
      held_bytes -= use.bytes();
      if (use.captured.geometry) use.captured.geometry = &use.geometry;
      layers[layer].stage(use.captured, hash_in(seed_of_refresh, static_cast<uint64_t>(numbers[layer])));
    }
    held.erase(found);
  }

  /// Lets go of what is kept of a layer.
  void drop_held(size_t layer) {
    std::lock_guard lock(mutex);
    std::erase_if(held, [&](const auto& uses) {
      if (uses.first.first != layer) return false;
      for (const Held& use : uses.second) held_bytes -= use.bytes();
      return true;
    });
  }

  /// Stages what backward shows of a use of a layer.
  void stage(const Captured& captured) {
    std::lock_guard lock(mutex);
    if (!fits(captured)) return;
    Stopwatch watch(seconds);
    layers[captured.layer].stage(captured, hash_in(seed, static_cast<uint64_t>(numbers[captured.layer])));
    if (early) early->staged(captured.layer, layers);
  }

  /// Notes what a walk of a watched graph has met.
  void note(const GraphLayers& met) {
    std::lock_guard lock(mutex);
    taken_by.insert(met.taken_by.begin(), met.taken_by.end());
    if (!met.opaque.empty()) opaque = met.opaque;
  }
  /// Forgets the watched graphs of a step.
  void forget_graphs() {
    std::lock_guard lock(mutex);
    taken_by.clear();
    opaque.clear();
    rerun_samples = 0;
  }
  /// GraphLayers::taken_by of the step's graphs, and what of their uses did not fit the layers
  std::map<size_t, std::string> taken_by = {};
  std::string opaque = {};    ///< GraphLayers::opaque of one of them
  int64_t rerun_samples = 0;  ///< samples of passes of the model that ran in backward alone

  /// A use of a layer, whose tensors outlive backward.
  struct Held {
    Captured captured = {};
    Geometry geometry = {};
    int64_t bytes() const { return static_cast<int64_t>(captured.input.nbytes() + captured.gradient.nbytes()); }
  };
  std::map<std::pair<size_t, int64_t>, std::vector<Held>> held = {};  ///< by layer and micro-batch
  int64_t held_bytes = 0, held_peak_bytes = 0;

 private:
  /// True for a use of which there are statistics. Notes the others.
  bool fits(const Captured& captured) {
    if (layers[captured.layer].fits(captured)) return true;
    taken_by[captured.layer] = captured.input.defined() ? "an operator of other sizes or groups" : "a nested tensor";
    return false;
  }
};

}  // namespace spillway::kfac
