/// The choice of a strategy for Strategy::automatic (`auto`). LibTorch-free.
#pragma once
#include <cstdint>
#include <limits>
#include <vector>

#include "kfac/plan/assignment.h"

namespace spillway::kfac {

struct StrategyChoice {
  Strategy strategy = Strategy::hybrid;
  double grad_worker_frac = 1;
};

/// Returns every way to distribute exact K-FAC over `world` ranks: comm_opt, then hybrid and owner_reduce with world …
/// 1 gradient workers a layer. (mem_opt is hybrid with one; dp is not exact.)
std::vector<StrategyChoice> exact_choices(int64_t world);

/// Returns `options` with `choice` filled in.
KfacOptions with(KfacOptions options, const StrategyChoice& choice);

/// Returns the exact choice whose busiest rank receives the fewest bytes per step (traffic_per_rank(), over
/// factor_interval and inverse_interval). A choice fits when no rank keeps more than `most_bytes` of K-FAC state, new
/// factors included (bytes_per_rank()). Only choices that fit are considered. Ties go to fewer bytes, then to the
/// earlier choice. When none fits, it returns the choice with the fewest bytes. Decides from the arguments alone, so
/// every rank decides alike.
StrategyChoice choose_strategy(const std::vector<LayerShape>& layers, int64_t world, const KfacOptions& options,
                               int64_t most_bytes = std::numeric_limits<int64_t>::max());

}  // namespace spillway::kfac
