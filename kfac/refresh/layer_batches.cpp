#include "kfac/refresh/layer_batches.h"

#include <algorithm>

namespace spillway::kfac {
namespace {

bool fit_together(const Setup& setup, size_t i, size_t k) {
  LayerShape a = setup.shape(i);
  a.name = setup.shape(k).name;
  return a == setup.shape(k) && setup.assignments[i].worker_of == setup.assignments[k].worker_of &&
         setup.layers[i].weight.scalar_type() == setup.layers[k].weight.scalar_type();
}

int64_t elements_of(const LayerShape& layer) {
  return layer.gradient_elements() + eigenbasis_elements(layer);
}

}  // namespace

int64_t default_batch_elements(const at::Device& device) {
  return device.is_cpu() ? 0 : int64_t{1} << 22;
}

int64_t batch_elements(const Setup& setup) {
  return setup.options.batch_elements.value_or(default_batch_elements(setup.layers.front().weight.device()));
}

std::vector<LayerBatch> batches_of(const Setup& setup) {
  const int64_t most_elements = batch_elements(setup);
  std::vector<LayerBatch> batches;
  for (size_t i = 0; i < setup.layers.size(); ++i) {
    const int64_t elements = elements_of(setup.shape(i));
    const auto found = std::ranges::find_if(batches, [&](const LayerBatch& batch) {
      return (std::ssize(batch.layers) + 1) * elements <= most_elements && fit_together(setup, batch.layers.front(), i);
    });
    if (found == batches.end())
      batches.push_back({.layers = {i}, .shape = setup.shape(i)});
    else
      found->layers.push_back(i);
  }
  for (LayerBatch& batch : batches) {
    batch.is_together = elements_of(batch.shape) <= most_elements;
    batch.shape = side_by_side(batch.shape, std::ssize(batch.layers));
  }
  return batches;
}

}  // namespace spillway::kfac
