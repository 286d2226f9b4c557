/// Which cases a rank will look at in a run: no other need be read.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/data/dataset.h"
#include "runtime/options/train_options.h"

namespace spillway {

/// Whether held-out case number `i` of the split is measured by this rank.
constexpr bool measures_on(size_t i, int rank, int world) {
  return static_cast<int>(i % static_cast<size_t>(world)) == rank;
}

/// Returns the cases that rank `rank` of `world` learns from in `steps` steps, after all ranks drew `drawn` cases, and
/// those that it measures on, and the first case, which tells shapes. Indices, ascending. Cost: a draw for each case
/// that all ranks take, until this rank has been dealt every one.
std::vector<int64_t> used_cases(const TrainOptions& options, const Split& split, int64_t drawn, int64_t steps, int rank,
                                int world);

}  // namespace spillway
