#include "kfac/parts.h"

#include <ATen/ATen.h>

#include <utility>

#include "kfac/factors/own_operators.h"

namespace spillway::kfac {
namespace {

std::shared_ptr<StagedFactors> staged_factors(const Setup& setup, const RefreshPlan& plan) {
  const KfacOptions& options = setup.options;
  auto staged = std::make_shared<StagedFactors>();
  staged->numbers = setup.numbers;
  for (size_t i = 0; i < setup.layers.size(); ++i)
    staged->layers.emplace_back(setup.shape(i), state_options(setup.layers[i].weight),
                                PatchWork(options.patch_workspace_bytes, options.shifted_products), options.convention,
                                setup.assignments[i].holds_factors(setup.rank()), options.samples_of(i));
  if (const auto& buckets = plan.buckets(0); options.overlap_factors && !buckets.empty())
    staged->early = std::make_unique<OverlappedReduction>(buckets, staged->layers, setup.assignments,
                                                          options.factor_dtype, setup.exchange.comm());
  return staged;
}

Tally new_tally(const Setup& setup) {
  Tally tally;
  tally.dropped = at::zeros({}, setup.layers.front().weight.options().dtype(at::kLong));
  tally.failed = at::zeros_like(tally.dropped);
  return tally;
}

}  // namespace

KfacParts::KfacParts(Setup agreed, RerunFinder find_reruns)
    : setup(std::move(agreed)),
      plan(setup),
      tally(new_tally(setup)),
      staged(staged_factors(setup, plan)),
      batches(batches_of(setup)),
      inverses(setup, batches),
      refresh(setup, plan, *staged, inverses, tally),
      watch(setup, plan, staged, refresh, tally, std::move(find_reruns)),
      gradients(setup, batches, inverses, refresh.dampings(), tally) {}

KfacCounters KfacParts::counters() const {
  KfacCounters counters = tally.counters;
  counters.dropped_factors = tally.dropped.item<int64_t>();
  counters.failed_decompositions = tally.failed.item<int64_t>();
  return counters;
}

void KfacParts::discard() {
  const OwnOperators own;
  refresh.discard();
  if (staged->early) staged->early->discard(staged->layers);
  // Statistics of earlier steps wait for their refreshes. They are of other layers.
  for (size_t i : plan.layers(plan.set_of(tally.counters.steps))) {
    staged->layers[i].discard();
    staged->drop_held(i);
  }
  watch.forget();
}

void KfacParts::resume(const KfacCounters& counters) {
  const OwnOperators own;
  tally.counters = counters;
  tally.dropped.fill_(counters.dropped_factors);
  tally.failed.fill_(counters.failed_decompositions);
  gradients.resume();
  watch.resume();
  for (size_t i = 0; i < setup.layers.size(); ++i) {
    staged->layers[i].discard();
    staged->drop_held(i);
  }
  refresh.resume();
}

}  // namespace spillway::kfac
