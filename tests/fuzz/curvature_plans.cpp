#include <nlohmann/json.hpp>

#include "kfac/plan/update_cycle.h"
#include "runtime/options/curvature_json.h"
#include "tests/fuzz/support.h"
#include "tests/fuzz/targets.h"

namespace spillway::fuzz {

void curvature_plans(std::string_view input) {
  taken([&] {
    const auto layers = runtime::parse_curvature(input);
    require(!layers.empty(), "a plan has layers");
    require(runtime::parse_curvature(runtime::curvature_json(layers).dump()) == layers, "plans are kept as they are");
    const kfac::UpdateCycle cycle(layers);
    for (int64_t step = 0; step < 3; ++step)
      for (size_t layer : cycle.sets()[cycle.set_of(step)])
        require(layers.at(layer).is_due(step), "only layers that are due are renewed");
  });
}

}  // namespace spillway::fuzz
