#include "kfac/refresh/factor_averages.h"

#include <ATen/ATen.h>

#include "core/clock.h"
#include "kfac/comm/reduce_factors.h"

namespace spillway::kfac {

void FactorAverages::take(size_t set, const AverageGroup& group, int64_t samples, double loss_scale) {
  auto& layers = staged_.layers;
  if (staged_.early && group.bucket) {
    finish_early(*group.bucket, group, loss_scale);
  } else {
    {
      Stopwatch watch(tally_.seconds.factor_compute);
      for (size_t i : group.layers)
        if (setup_.assignments[i].stages_factors(setup_.rank())) layers[i].finish(samples, loss_scale);
    }
    if (group.bucket) {
      Stopwatch watch(tally_.seconds.factor_communicate);
      reduce_factors(plan_.buckets(set)[*group.bucket], layers, setup_.assignments, samples,
                     setup_.options.factor_dtype, setup_.exchange);
    }
  }
  Stopwatch watch(tally_.seconds.factor_compute);
  for (size_t i : group.layers) layers[i].commit(setup_.options.decay, tally_.dropped);
}

// Ends a reduction that started during backward, when the loss scale was not known.
void FactorAverages::finish_early(size_t bucket, const AverageGroup& group, double loss_scale) {
  {
    Stopwatch watch(tally_.seconds.factor_communicate);
    staged_.early->finish(bucket, staged_.layers);
  }
  Stopwatch watch(tally_.seconds.factor_compute);
  for (size_t i : group.layers)
    if (loss_scale != 1) staged_.layers[i].staged().back().div_(loss_scale).div_(loss_scale);
}

}  // namespace spillway::kfac
