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

LayerInverses::LayerInverses(const Setup& setup) : next_(setup.layers.size()), versions_(setup.layers.size()) {
  for (size_t i = 0; i < setup.layers.size(); ++i)
    in_use_.push_back(setup.assignments[i].is_worker(setup.rank())
                          ? LayerInverse::identity(setup.shape(i), state_options(setup.layers[i].weight))
                          : LayerInverse{});
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
  in_use_[layer] = std::exchange(next_[layer], {});
  ++versions_[layer];
}

void LayerInverses::overwritten() {
  for (int64_t& version : versions_) ++version;
}

}  // namespace spillway::kfac
