/// A Kfac's state, tensor by tensor: what a step depends on besides the model.
#pragma once
#include <vector>

#include "kfac/state_dict.h"

namespace spillway::kfac {

class Kfac;

/// Layer by layer its running averages as they are kept, in the order of factor_tensors(), with staleness what each is
/// being decomposed into (Kfac::upcoming(); waits for it), and what preconditions it, in the order of
/// inverse_tensors(). The same names, sizes and holders on every rank. Not the counters.
std::vector<StateEntry> state_entries(const Kfac& kfac);

}  // namespace spillway::kfac
