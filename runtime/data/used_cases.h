/// The cases that a rank uses in a run; no other case need be read.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/data/dataset.h"
#include "runtime/data/sampler.h"

namespace spillway::runtime {

/// Returns true when rank `rank` of `world` measures held-out case number `i` of the split.
constexpr bool measures_on(size_t i, int rank, int world) {
  return static_cast<int>(i % static_cast<size_t>(world)) == rank;
}

/// Returns the cases that rank `rank` of `world` uses, as ascending indices. They are the cases of the next `batches`
/// batches of its sampler, and those that it measures on. The first case is included, because it tells shapes. Cost: a
/// draw for each case that all ranks take, until this rank has been dealt every one.
std::vector<int64_t> used_cases(Sampler sampler, const Split& split, int64_t batches, int rank, int world);

}  // namespace spillway::runtime
