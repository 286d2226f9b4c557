/// A Kfac's state, tensor by tensor: everything that a step depends on besides the model.
#pragma once
#include <vector>

#include "kfac/state_dict.h"

namespace spillway::kfac {

class Kfac;

/// Returns the state layer by layer. First come the layer's running averages as they are kept, in the order of
/// factor_tensors(). With staleness, the pending decomposition of each factor follows (Kfac::pending_basis(), which
/// waits for it). Last come the tensors that precondition the layer, in the order of inverse_tensors(). Names, sizes
/// and holders are the same on every rank. The counters are not included.
std::vector<StateEntry> state_entries(const Kfac& kfac);

}  // namespace spillway::kfac
