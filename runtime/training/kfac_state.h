/// K-FAC's state as part of a checkpoint.
#pragma once
#include <vector>

#include "kfac/kfac.h"
#include "runtime/training/checkpoint.h"

namespace spillway {

/// Appends the running factors (`kfac/LAYER/factor0`, in the order of LayerShape::factors()), what preconditions
/// (kfac::inverse_tensors(): `…/vectors0`, `…/values0`, or `…/inverse0`), with staleness what is being decomposed
/// (`…/upcoming_vectors0`, `…/upcoming_values0`; waits for it), and the counters (`kfac/counters`, a copy).
/// What rank 0 does not hold, an owner or gradient worker sends when it is written.
void add_kfac_state(const kfac::Kfac& kfac, const ddl::Comm& comm, std::vector<StateTensor>& state);

/// After `state`, made by add_kfac_state(), was read back: takes the counters.
void resume_kfac(kfac::Kfac& kfac, const std::vector<StateTensor>& state);

}  // namespace spillway
