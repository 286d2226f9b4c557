/// What the ranks make sure of before they share work.
#pragma once
#include <vector>

#include "kfac/comm/rank_exchange.h"
#include "kfac/factors/layers.h"
#include "kfac/plan/options.h"

namespace spillway::kfac {

/// With Placement::measured, `options` with rank 0's decomposition_seconds for the sizes in `layers`; where rank 0 has
/// none it measures them (measure_decompositions() of tensors like the layers' state), while the others wait. Else as
/// given. Collective.
KfacOptions with_agreed_seconds(KfacOptions options, const std::vector<Layer>& layers, const Exchange& exchange);

/// `options` as every rank will act on them: with_agreed_seconds(), and Strategy::automatic is resolved by
/// choose_strategy(). Throws BadRequest on every rank where layers (names, shapes, order) or an option that shapes what
/// ranks exchange or when (strategy, shares, placement, method, intervals, schedules at step 0 and such) differ between
/// ranks. Cost: two or three messages of a few bytes to each rank; none alone.
KfacOptions agree_on(KfacOptions options, const std::vector<Layer>& layers, const Exchange& exchange);

}  // namespace spillway::kfac
