#include "kfac/refresh/factor_averages.h"

#include <ATen/ATen.h>

#include <utility>
#include <vector>

#include "core/clock.h"
#include "kfac/comm/reduce_factors.h"

namespace spillway::kfac {
namespace {

/// Returns the most elements of new factors whose running averages are updated at once. On a CPU they fit a core's
/// cache, because an update passes over them twice. On a GPU an operator's call takes longer than its work.
int64_t updated_together(const at::Device& device) {
  return device.is_cpu() ? int64_t{1} << 18 : int64_t{1} << 22;
}

}  // namespace

void FactorAverages::take(size_t set, const AverageGroup& group, int64_t samples, double loss_scale) {
  auto& layers = staged_.layers;
  if (staged_.early && group.bucket) {
    finish_early(*group.bucket, group, loss_scale);
  } else if (group.bucket) {
    {
      Stopwatch watch(tally_.seconds.factor_compute);
      for (size_t i : group.layers) finish(i, samples, loss_scale);
    }
    Stopwatch watch(tally_.seconds.factor_communicate);
    reduce_factors(plan_.buckets(set)[*group.bucket], layers, setup_.assignments, samples, setup_.options.factor_dtype,
                   setup_.exchange);
  }
  Stopwatch watch(tally_.seconds.factor_compute);
  const int64_t most = updated_together(setup_.layers.front().weight.device());
  int64_t elements = 0;
  std::vector<AverageUpdate> updates;
  for (size_t i : group.layers) {
    if (!group.bucket) finish(i, samples, loss_scale);
    for (AverageUpdate& update : layers[i].take_updates()) {
      const int64_t own = update.fresh.numel();
      if (elements + own > most)
        update_running_averages(std::exchange(updates, {}), setup_.options.decay, tally_.dropped);
      elements = (updates.empty() ? 0 : elements) + own;
      updates.push_back(std::move(update));
    }
  }
  update_running_averages(updates, setup_.options.decay, tally_.dropped);
}

void FactorAverages::finish(size_t layer, int64_t samples, double loss_scale) {
  if (setup_.assignments[layer].stages_factors(setup_.rank())) staged_.layers[layer].finish(samples, loss_scale);
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
