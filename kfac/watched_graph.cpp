#include "kfac/watched_graph.h"

#include <ATen/ATen.h>

#include <utility>

#include "kfac/refresh/staged_factors.h"

namespace spillway::kfac {

GraphLayers watch_graph(at::TensorList roots, const std::shared_ptr<const GraphWatch>& watch) {
  const auto alive = watch->staged.lock();
  if (!alive) return {};
  CaptureManner manner{.owner = alive.get()};
  if (watch->find_reruns)
    manner.meet_opaque = [&watch](torch::autograd::Node& node) {
      watch->find_reruns(node, [watch](at::TensorList outputs) { watch_graph(outputs, watch); });
    };
  auto met = install_capture_hooks(roots, watch->due, watch->sink, manner);
  alive->note(met);
  return met;
}

}  // namespace spillway::kfac
