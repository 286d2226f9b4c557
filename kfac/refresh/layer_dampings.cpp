#include "kfac/refresh/layer_dampings.h"

#include <ATen/ATen.h>

#include <numeric>
#include <optional>
#include <utility>

#include "core/clock.h"

namespace spillway::kfac {

LayerDampings::LayerDampings(const Setup& setup, const StagedFactors& staged, Tally& tally)
    : setup_(setup), staged_(staged), tally_(tally) {
  if (setup.options.damping_scope_in_use() == DampingScope::network)
    largest_ = at::zeros({std::ssize(setup.layers)}, setup.state());
}

void LayerDampings::note(const std::vector<size_t>& layers) {
  if (!largest_.defined()) return;
  Stopwatch watch(tally_.seconds.decompose);
  std::vector<bool> due(setup_.layers.size());
  for (size_t i : layers) due[i] = true;
  auto means = at::zeros({std::ssize(setup_.layers), kMaxFactors}, largest_.options());
  for (const auto& [i, f] : setup_.owned) {  // a factor's owner knows its trace
    if (!due[i]) continue;
    const auto factors = setup_.shape(i).factors();
    const auto of_layer = means[static_cast<int64_t>(i)];
    const auto at = static_cast<int64_t>(f);
    of_layer[at].copy_(mean_eigenvalue(factors[f], staged_.layers[i].running()[f].traces()));
    if (f + 1 == factors.size()) of_layer.narrow(0, at + 1, kMaxFactors - at - 1).fill_(1);
  }
  if (setup_.exchange.world() > 1) setup_.exchange.reduce_(means.view(-1), ddl::Reduction::sum);
  largest_.copy_(at::maximum(largest_, means.prod(1)));
  has_changed_ = true;
}

Damping LayerDampings::common() const {
  const auto now = setup_.options.at(tally_.counters.steps);
  const double scale = tally_.counters.damping_scale;
  return {now.relative_damping * scale, now.damping ? std::optional(*now.damping * scale) : std::nullopt};
}

void LayerDampings::set() {
  const Damping now = common();
  // Other stages note curvatures of their own layers.
  const bool follows_stages = largest_.defined() && setup_.rows_of_stages;
  if (std::exchange(has_changed_, false) || follows_stages || now.relative != now_.common.relative ||
      now.absolute != now_.common.absolute)
    ++version_;
  now_.common = now;
  if (!largest_.defined()) return;
  // Roots are multiplied, because a product of two small curvatures may be zero.
  const auto roots = largest_.sqrt();
  std::vector<size_t> every(setup_.layers.size());
  std::iota(every.begin(), every.end(), size_t{0});
  now_.curvatures = roots * setup_.all_rows(roots.unsqueeze(1), every).max();
}

void LayerDampings::end_step() {
  if (setup_.options.curvature_delay == 0) now_.curvatures.reset();
}

}  // namespace spillway::kfac
