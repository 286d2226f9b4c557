#include "kfac/plan/layer_curvature.h"

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

void validate(const std::vector<LayerCurvature>& layers) {
  int64_t cycle = 1;
  for (const auto& curvature : layers) {
    const int64_t interval = curvature.interval, slot = curvature.slot,
                  samples = curvature.samples.positions().value_or(1);
    const auto refuse = [&](std::string_view field, int64_t value, const std::string& range) {
      throw BadRequest(
          str("[kfac.options] the ", field, " of layer '", curvature.layer, "' is ", value, ", outside ", range));
    };
    if (interval < 1 || interval > kLongestCycle) refuse("interval", interval, str("1 to ", kLongestCycle, " steps"));
    if (slot < 0 || slot >= interval) refuse("slot", slot, str("0 to ", interval - 1));
    if (samples < 1) refuse("samples", samples, "1 and more positions");
    curvature.rank.validate();
    cycle = std::lcm(cycle, interval);
    if (cycle > kLongestCycle)
      refuse("interval", interval, str("those whose cycle with the intervals before is at most ", kLongestCycle));
  }
}

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
