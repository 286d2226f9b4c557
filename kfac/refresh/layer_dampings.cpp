#include "kfac/refresh/layer_dampings.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "core/clock.h"

namespace spillway::kfac {

namespace {

// Factors of one shape and type, whose mean eigenvalues are computed together.
struct Alike {
  FactorShape shape;
  std::vector<StoredTriangle> averages;
  std::vector<at::Tensor> means;  // 0-dim, where their mean eigenvalues go

  bool accepts(const FactorShape& other, const StoredTriangle& average) const {
    return shape == other && averages.front().entries.scalar_type() == average.entries.scalar_type();
  }
};

// Returns true for a factor [layers, kMaxFactors] that a layer does not have.
at::Tensor absent_factors(const Setup& setup) {
  const auto absent = at::ones({std::ssize(setup.layers), kMaxFactors}, at::kBool);
  for (int64_t i = 0; i < absent.size(0); ++i)
    absent[i].narrow(0, 0, std::ssize(setup.shape(static_cast<size_t>(i)).factors())).fill_(false);
  return absent.to(setup.state().device());
}

}  // namespace

LayerDampings::LayerDampings(const Setup& setup, const StagedFactors& staged, Tally& tally)
    : setup_(setup), staged_(staged), tally_(tally) {
  if (setup.options.damping_scope_in_use() != DampingScope::network) return;
  largest_ = at::zeros({std::ssize(setup.layers)}, setup.state());
  absent_ = absent_factors(setup);
}

void LayerDampings::note(const std::vector<size_t>& layers) {
  if (!largest_.defined()) return;
  Stopwatch watch(tally_.seconds.decompose);
  largest_.copy_(at::maximum(largest_, mean_eigenvalues(layers).prod(1)));
  has_changed_ = true;
}

at::Tensor LayerDampings::mean_eigenvalues(const std::vector<size_t>& layers) const {
  std::vector<bool> due(setup_.layers.size());
  for (size_t i : layers) due[i] = true;
  auto means = at::zeros({std::ssize(setup_.layers), kMaxFactors}, largest_.options());
  std::vector<Alike> all;
  for (const FactorId& id : setup_.owned) {  // a factor's owner knows its trace
    if (!due[id.layer]) continue;
    const auto shape = setup_.factor(id);
    const auto& average = staged_.layers[id.layer].running().at(id.factor);
    auto found = std::ranges::find_if(all, [&](const Alike& alike) { return alike.accepts(shape, average); });
    if (found == all.end()) found = all.insert(all.end(), {.shape = shape, .averages = {}, .means = {}});
    found->averages.push_back(average);
    found->means.push_back(means[static_cast<int64_t>(id.layer)][static_cast<int64_t>(id.factor)]);
  }
  for (const Alike& alike : all)
    at::_foreach_copy_(alike.means,
                       mean_eigenvalue(alike.shape, traces(alike.averages).view({-1, alike.shape.count})).unbind());
  if (setup_.exchange.world() > 1) setup_.exchange.reduce_(means.view(-1), ddl::Reduction::sum);
  return means.masked_fill_(absent_, 1);
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
