/// The agreement between ranks on options and layers before they share work.
#pragma once
#include <vector>

#include "kfac/comm/rank_exchange.h"
#include "kfac/factors/layers.h"
#include "kfac/plan/options.h"

namespace spillway::kfac {

/// Returns, with Placement::measured, `options` with rank 0's decomposition_seconds for the sizes in `layers`. When
/// rank 0 has none, it measures them while the other ranks wait (measure_decompositions() of tensors like the layers'
/// state). Returns `options` as given with other placements. Collective.
KfacOptions with_agreed_seconds(KfacOptions options, const std::vector<Layer>& layers, const RankExchange& exchange);

/// Returns `options` as every rank will act on them: with_agreed_seconds(), and with Strategy::automatic resolved by
/// choose_strategy(). Throws BadRequest on every rank when layers (names, shapes, order) differ between ranks. Throws
/// it also when an option differs that decides the exchanges between ranks or their times. Such options are strategy,
/// shares, placement, method, intervals, schedules at step 0 and others. Cost: two or three messages of a few bytes to
/// each rank; none on a single rank.
KfacOptions agreed_options(KfacOptions options, const std::vector<Layer>& layers, const RankExchange& exchange);

}  // namespace spillway::kfac
