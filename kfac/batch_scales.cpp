#include "kfac/batch_scales.h"

#include <ATen/ATen.h>

#include <optional>

#include "core/category.h"
#include "kfac/plan/layer_shape.h"

namespace spillway::kfac {
namespace {

// Lets go of memory of which a tensor is a part.
void keep_own_memory(LayerScales& scales) {
  for (at::Tensor* tensor : scales.tensors())
    if (tensor->storage().nbytes() > tensor->nbytes()) *tensor = tensor->clone();
}

}  // namespace

BatchScales::BatchScales(const Setup& setup, const std::vector<LayerBatch>& batches, const LayerInverses& inverses,
                         const LayerDampings& dampings)
    : setup_(setup),
      batches_(batches),
      inverses_(inverses),
      dampings_(dampings),
      held_(batches.size()),
      versions_(setup.layers.size(), -1) {
  // All memory is there from the start, so that the first step needs as much as later ones do.
  if (setup.options.method == Method::eigen && !setup.options.precompute_outer) {
    mean_curvatures_ = at::zeros({std::ssize(setup.layers)}, setup.state());
    gammas_ = at::zeros_like(mean_curvatures_);
  }
  const CategoryScope eigenbases(Category::eigenbases);
  for (size_t b = 0; b < batches.size(); ++b) {
    if (inverses.of_batch(b).held.empty() || scale_tensors(setup.shape(batches[b].layers.front())).empty()) continue;
    held_[b].scales = scales_of(batches[b].shape, inverses.of_batch(b), {});
    keep_own_memory(held_[b].scales);
  }
}

// Returns true for a layer whose γ begin_step() makes; denominators() makes that of others.
bool BatchScales::has_gamma(size_t i) const {
  const auto& held = inverses_.in_use(i).held;
  return mean_curvatures_.defined() && !setup_.shape(i).bias_apart() && !held.empty() &&
         held.back().scalar_type() == mean_curvatures_.scalar_type();
}

// Makes γ of all such layers at once, because a step of small layers takes as long as its operators are many.
void BatchScales::begin_step() {
  if (!mean_curvatures_.defined()) return;
  bool has_changed = damping_version_ != dampings_.version();
  for (size_t i = 0; i < setup_.layers.size(); ++i) {
    if (versions_[i] == inverses_.version(i) || !has_gamma(i)) continue;
    const auto& shape = setup_.shape(i);
    mean_curvatures_[static_cast<int64_t>(i)].copy_(mean_curvature(shape, inverses_.in_use(i).values(shape)));
    versions_[i] = inverses_.version(i);
    has_changed = true;
  }
  if (has_changed) gammas_.copy_(gamma_of(mean_curvatures_, dampings_.now().of_all()));
  damping_version_ = dampings_.version();
}

LayerScales BatchScales::of(size_t b) {
  const LayerBatch& batch = batches_[b];
  auto& [held, versions] = held_[b];
  const auto now = versions_of(batch);
  if (versions == now) return held;
  LayerScales fresh = scales_of(batch.shape, inverses_.of_batch(b), damping_of(batch.layers));
  if (held.tensors().empty()) return fresh;
  const auto to = held.tensors(), from = fresh.tensors();
  for (size_t t = 0; t < to.size(); ++t) to[t]->copy_(*from[t]);
  versions = now;
  return held;
}

LayerScales BatchScales::of_layer(size_t i) const {
  return scales_of(setup_.shape(i), inverses_.in_use(i), damping_of({i}));
}

int64_t BatchScales::bytes() const {
  int64_t sum = 0;
  for (Held held : held_)
    for (const at::Tensor* tensor : held.scales.tensors()) sum += static_cast<int64_t>(tensor->nbytes());
  return sum;
}

Damping BatchScales::damping_of(const std::vector<size_t>& layers) const {
  const auto of_layers = [&](const at::Tensor& all) {
    std::vector<at::Tensor> own;
    for (size_t i : layers) own.push_back(all[static_cast<int64_t>(i)]);
    return own.size() == 1 ? own.front() : at::stack(own);
  };
  Damping damping = dampings_.now().common;
  if (has_gamma(layers.front()))
    damping.gamma = of_layers(gammas_);
  else if (dampings_.now().curvatures.defined())
    damping.curvature = of_layers(dampings_.now().curvatures);
  return damping;
}

std::vector<int64_t> BatchScales::versions_of(const LayerBatch& batch) const {
  std::vector<int64_t> versions{dampings_.version()};
  for (size_t i : batch.layers) versions.push_back(inverses_.version(i));
  return versions;
}

}  // namespace spillway::kfac
