/// The way of new factors into the running averages.
#pragma once
#include <cstdint>

#include "kfac/refresh/refresh_plan.h"
#include "kfac/refresh/setup.h"
#include "kfac/refresh/staged_factors.h"

namespace spillway::kfac {

/// Averages the new factors over ranks and takes them into the running averages.
class FactorAverages {
 public:
  FactorAverages(const Setup& setup, const RefreshPlan& plan, StagedFactors& staged, Tally& tally)
      : setup_(setup), plan_(plan), staged_(staged), tally_(tally) {}

  /// Takes in the new factors of the layers of a group of a set. They come from `samples` samples on this rank, of a
  /// loss that was multiplied by `loss_scale`. Collective where they travel. Throws ddl::CommError.
  void take(size_t set, const AverageGroup& group, int64_t samples, double loss_scale);

 private:
  void finish(size_t layer, int64_t samples, double loss_scale);
  void finish_early(size_t bucket, const AverageGroup& group, double loss_scale);

  const Setup& setup_;
  const RefreshPlan& plan_;
  StagedFactors& staged_;
  Tally& tally_;
};

}  // namespace spillway::kfac
