/// The parts that a Kfac is made of.
#pragma once
#include <memory>
#include <vector>

#include "kfac/gradient_preconditioner.h"
#include "kfac/refresh/curvature_refresh.h"
#include "kfac/statistics_watch.h"

namespace spillway::kfac {

/// A Kfac's parts, in the order of a factor's life. Kfac::step() walks through it.
struct KfacParts {
  KfacParts(Setup agreed, RerunFinder find_reruns);
  KfacParts(const KfacParts&) = delete;
  KfacParts& operator=(const KfacParts&) = delete;

  const Setup setup;
  const RefreshPlan plan;
  Tally tally;
  const std::shared_ptr<StagedFactors> staged;  ///< statistics and running averages
  const std::vector<LayerBatch> batches;
  LayerInverses inverses;
  CurvatureRefresh refresh;
  StatisticsWatch watch;
  GradientPreconditioner gradients;

  /// Returns the counters, those that the device keeps included. Two host synchronizations.
  KfacCounters counters() const;
  /// Forgets the coming step's watched passes and statistics.
  void discard();
  /// Continues from these counters and the tensors of the state.
  void resume(const KfacCounters& counters);
};

}  // namespace spillway::kfac
