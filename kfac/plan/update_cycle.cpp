#include "kfac/plan/update_cycle.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"

namespace spillway::kfac {
namespace {

std::vector<size_t> all_of(size_t count) {
  std::vector<size_t> all(count);
  std::iota(all.begin(), all.end(), size_t{0});
  return all;
}

std::string kind_of(const std::vector<size_t>& set, int64_t step) {
  return set.empty() ? "plain" : str("curvature ", step);
}

}  // namespace

UpdateCycle::UpdateCycle(size_t layers) : sets_{all_of(layers)}, kinds_{"factor+decompose"}, set_of_step_{0} {}

UpdateCycle::UpdateCycle(const std::vector<LayerCurvature>& layers) : UpdateCycle(layers.size()) {
  int64_t cycle = 1;
  for (const auto& layer : layers) cycle = std::lcm(cycle, layer.interval);
  set_of_step_.clear();
  for (int64_t step = 0; step < cycle; ++step) {
    std::vector<size_t> due;
    for (size_t i = 0; i < layers.size(); ++i)
      if (step % layers[i].interval == layers[i].slot) due.push_back(i);
    const auto known = std::find(sets_.begin(), sets_.end(), due);
    set_of_step_.push_back(known - sets_.begin());
    if (known != sets_.end()) continue;
    kinds_.push_back(kind_of(due, step));
    sets_.push_back(std::move(due));
  }
}

}  // namespace spillway::kfac
