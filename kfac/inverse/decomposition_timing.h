/// Measures what decompositions cost here.
#pragma once
#include <c10/core/TensorOptions.h>

#include <cstdint>
#include <vector>

#include "kfac/plan/decomposition_costs.h"
#include "kfac/plan/options.h"

namespace spillway::kfac {

/// Decomposes (with `plain` and `pi`: inverts) a random covariance of each of `sides` (ascending, ≥ 1) `rounds` times,
/// of the type and on the device of `like`, after one that is not counted, and takes the medians; a side that seemed
/// cheaper than a smaller one costs as much. Cost: 9·side³ flops · (rounds + 1) each about: 0.3 s for the default sides
/// on a core; workspace 8·side² elements. Blocks. Throws BadRequest for sides or rounds outside their ranges.
DecompositionCosts measure_decompositions(const c10::TensorOptions& like, Method method = Method::eigen,
                                          const std::vector<int64_t>& sides = {16, 64, 256, 768}, int64_t rounds = 3);

}  // namespace spillway::kfac
