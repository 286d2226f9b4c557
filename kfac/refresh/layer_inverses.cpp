#include "kfac/refresh/layer_inverses.h"

#include <ATen/ATen.h>

#include <utility>

#include "core/category.h"

namespace spillway::kfac {
namespace {

LayerInverse copy_of(const LayerInverse& inverse) {
  const CategoryScope eigenbases(Category::eigenbases);
  LayerInverse copy;
  for (const at::Tensor& tensor : inverse.held) copy.held.push_back(tensor.clone());
  return copy;
}

}  // namespace

LayerInverses::LayerInverses(const Setup& setup, const std::vector<LayerBatch>& batches)
    : in_use_(setup.layers.size()), next_(setup.layers.size()), versions_(setup.layers.size()) {
  for (const LayerBatch& batch : batches) {
    LayerInverse& all = of_batches_.emplace_back();
    const size_t first = batch.layers.front();
    if (!setup.assignments[first].is_worker(setup.rank())) continue;
    all = LayerInverse::identity(batch.shape, state_options(setup.layers[first].weight));
    for (const at::Tensor& tensor : all.held) {
      const auto slices = tensor.chunk(std::ssize(batch.layers));
      for (size_t k = 0; k < batch.layers.size(); ++k) in_use_[batch.layers[k]].held.push_back(slices[k]);
    }
  }
}

LayerInverse& LayerInverses::renewed(size_t layer, bool is_late) {
  if (!is_late) {
    ++versions_[layer];
    return in_use_[layer];
  }
  if (next_[layer].held.empty() && !in_use_[layer].held.empty()) next_[layer] = copy_of(in_use_[layer]);
  return next_[layer];
}

void LayerInverses::adopt(size_t layer) {
  if (next_[layer].held.empty()) return;
  const LayerInverse next = std::exchange(next_[layer], {});
  for (size_t t = 0; t < next.held.size(); ++t) in_use_[layer].held[t].copy_(next.held[t]);
  ++versions_[layer];
}

void LayerInverses::overwritten() {
  for (int64_t& version : versions_) ++version;
}

}  // namespace spillway::kfac
