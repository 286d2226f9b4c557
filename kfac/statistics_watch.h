/// The watch over backward passes, which show the statistics of the layers.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kfac/model_stages.h"
#include "kfac/refresh/curvature_refresh.h"
#include "kfac/watched_graph.h"

namespace spillway::kfac {

/// Makes backward passes show the layers that the coming step updates, and tells afterwards what was seen. Each public
/// function does the work of Kfac's function of its name.
class StatisticsWatch {
 public:
  StatisticsWatch(const Setup& setup, const RefreshPlan& plan, std::shared_ptr<StagedFactors> staged,
                  CurvatureRefresh& refresh, const Tally& tally, RerunFinder find_reruns);

  void watch(at::TensorList roots, const StageSamples& samples);
  void watch_rerun(at::TensorList roots, int64_t batch);
  std::vector<SkippedLayer> unseen_layers();

  /// Returns the samples of the coming step's passes on this rank, where it updates factors; else 0. Call it after
  /// backward. Throws c10::Error where none was watched. Throws BadRequest for a number of positions that no layer has.
  /// Collective before the first update.
  int64_t samples();
  /// Forgets the passes that were watched.
  void forget();
  /// Forgets which layers were ever seen.
  void resume() { was_seen_.clear(); }

 private:
  bool updates_factors() const { return plan_.work(tally_.counters).updates_factors; }
  const std::vector<size_t>& due_layers() const { return plan_.layers(plan_.set_of(tally_.counters.steps)); }
  std::shared_ptr<const GraphWatch> graph_watch(int64_t micro_batch) const;
  void set_seed();
  void take_reruns();
  void check_positions() const;
  double sight_of(size_t layer) const;
  std::string blindness(size_t layer) const;

  const Setup& setup_;
  const RefreshPlan& plan_;
  const std::shared_ptr<StagedFactors> staged_;
  CurvatureRefresh& refresh_;
  const Tally& tally_;
  const RerunFinder find_reruns_;
  bool watched_ = false;
  int64_t watched_batch_ = 0;
  std::vector<bool> was_seen_;  ///< by layer; empty until unseen_layers() has looked once
};

}  // namespace spillway::kfac
