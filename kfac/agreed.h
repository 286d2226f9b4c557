/// What the ranks make sure of before they share work.
#pragma once
#include <vector>

#include "kfac/exchange.h"
#include "kfac/layer_shape.h"
#include "kfac/options.h"

namespace spillway::kfac {

/// `options` as every rank will act on them: measured decomposition seconds are rank 0's, Strategy::automatic is
/// resolved by choose_strategy(). Throws BadRequest on every rank where layers (names, shapes, order), strategy,
/// shares, placement or factor_dtype differ between ranks. Cost: two or three messages of a few bytes to each rank;
/// none alone.
KfacOptions agree_on(KfacOptions options, const std::vector<LayerShape>& layers, const Exchange& exchange);

}  // namespace spillway::kfac
