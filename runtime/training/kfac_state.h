/// K-FAC's state as part of a checkpoint.
#pragma once
#include <vector>

#include "kfac/kfac.h"
#include "runtime/training/checkpoint.h"

namespace spillway::runtime {

/// Appends K-FAC's state to `state`. First come the running factors (`kfac/LAYER/factor0`, in the order of
/// LayerShape::factors()), then the preconditioning tensors (kfac::inverse_tensors(): `…/vectors0`, `…/values0`, or
/// `…/inverse0`). With staleness it appends the results of the decomposition in progress (`…/upcoming_vectors0`,
/// `…/upcoming_values0`), and waits for it. The counters come last (`kfac/counters`, a copy).
/// A tensor's holder is its first owner or gradient worker, among the ranks of the Kfac.
void add_kfac_state(const kfac::Kfac& kfac, std::vector<StateTensor>& state);

/// Returns K-FAC's counters alone (`kfac/counters`, a copy).
std::vector<StateTensor> kfac_counters(const kfac::Kfac& kfac);

/// Takes the counters from `state`, which add_kfac_state() made and which was read back.
void resume_kfac(kfac::Kfac& kfac, const std::vector<StateTensor>& state);

}  // namespace spillway::runtime
