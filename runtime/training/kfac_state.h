/// K-FAC's state as part of a checkpoint.
#pragma once
#include <vector>

#include "kfac/kfac.h"
#include "runtime/training/checkpoint.h"
#include "runtime/training/run_context.h"

namespace spillway::runtime {

/// Appends K-FAC's state to `state`. First come the running factors (`kfac/LAYER/factor0`, in the order of
/// LayerShape::factors()), then the preconditioning tensors (kfac::inverse_tensors(): `…/vectors0`, `…/values0`, or
/// `…/inverse0`). With staleness it appends the results of the decomposition in progress (`…/upcoming_vectors0`,
/// `…/upcoming_values0`), and waits for it. The counters come last (`kfac/counters`, a copy of model_counters()).
/// A tensor's holder is its first owner or gradient worker, among the ranks of the Kfac. Collective where the model is
/// cut.
void add_kfac_state(const kfac::Kfac& kfac, const RunContext& context, std::vector<StateTensor>& state);

/// Returns K-FAC's counters alone (`kfac/counters`, a copy).
std::vector<StateTensor> kfac_counters(const kfac::Kfac& kfac);

/// Returns the counters of the whole model: those of this rank, but factors that had trouble are summed over the stages
/// of its copy. Collective where the model is cut. Throws CommError.
kfac::KfacCounters model_counters(const kfac::Kfac& kfac, const RunContext& context);

/// Takes the counters from `state`, which add_kfac_state() made and which was read back. Where the model is cut, the
/// first stage alone takes the counts of factors that had trouble, so that they stay the model's.
void resume_kfac(kfac::Kfac& kfac, const RunContext& context, const std::vector<StateTensor>& state);

}  // namespace spillway::runtime
