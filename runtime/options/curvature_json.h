/// The curvature of each layer as JSON, in results, checkpoints and files that users give back. LibTorch-free.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "kfac/plan/layer_curvature.h"

namespace spillway::runtime {

/// Returns a list of {"layer", "samples", "rank", "interval", "slot"}, one object a layer. Samples and ranks are the
/// texts of kfac::name().
nlohmann::json curvature_json(const std::vector<kfac::LayerCurvature>& layers);

/// Reads what curvature_json() wrote, or an object whose "plan", alone or in "kfac", is that: a result of
/// `spillway train --json`. Throws BadRequest naming what is wrong, also for numbers that kfac::validate() refuses.
std::vector<kfac::LayerCurvature> parse_curvature(std::string_view text);

}  // namespace spillway::runtime
