/// The arithmetic of a reduction.
#pragma once
#include <cstdint>
#include <span>

namespace spillway::ddl {

/// target[k] = (((terms[0][k] + terms[1][k]) + terms[2][k]) + …) / divisor for k < count; a divisor of 1 changes
/// nothing. `target` may be one of the terms, otherwise they do not overlap. One pass over memory.
void ordered_sum(float* target, std::span<const float* const> terms, int64_t count, float divisor);

}  // namespace spillway::ddl
