/// The measurement of decomposition times on this machine.
#pragma once
#include <c10/core/TensorOptions.h>

#include <cstdint>
#include <vector>

#include "kfac/plan/decomposition_costs.h"
#include "kfac/plan/options.h"

namespace spillway::kfac {

/// Measures the seconds to decompose (with `plain` and `pi`: to invert) a random covariance of each of `sides`
/// (ascending, ≥ 1). The type and the device are those of `like`. It takes the median of `rounds` runs, after one that
/// is not counted. A side that seemed cheaper than a smaller one is given the smaller one's seconds. Cost: about
/// 9·side³ flops · (rounds + 1) for each side, 0.3 s for the default sides on a core; workspace 8·side² elements.
/// Blocks. Throws BadRequest for sides or rounds outside their ranges.
DecompositionCosts measure_decompositions(const c10::TensorOptions& like, Method method = Method::eigen,
                                          const std::vector<int64_t>& sides = {16, 64, 256, 768}, int64_t rounds = 3);

}  // namespace spillway::kfac
