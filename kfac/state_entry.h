/// A Kfac's state, tensor by tensor: everything that a step depends on besides the model.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace spillway::kfac {

class Kfac;
struct KfacCounters;

/// One tensor of the state, the same on all ranks that hold it.
struct StateEntry {
  std::string name;  ///< `LAYER/factor0`, `LAYER/upcoming_vectors0`, `LAYER/vectors0`, …
  at::ScalarType type;
  std::vector<int64_t> sizes;
  at::Tensor held;               ///< the tensor itself; undefined where this rank does not hold it
  std::vector<int64_t> holders;  ///< ranks, ascending
};

/// Returns the state layer by layer. First come the layer's running averages as they are kept, in the order of
/// factor_tensors(). With staleness, the pending decomposition of each factor follows (KfacState::pending_basis(),
/// which waits for it). Then come the tensors that precondition the layer, in the order of inverse_tensors(); the same
/// tensors of KfacState::next_inverse(), where the layer has one; and its KfacState::largest_curvature() [], where it
/// is defined. Names, sizes and holders are the same on every rank. The counters are not included. `steps` is the
/// number of steps done, which tells the layers that have one; a Kfac that did fewer lacks the tensor.
std::vector<StateEntry> state_entries(const Kfac& kfac, int64_t steps);

/// Packs the counters into one int64 tensor; unpack() reverses it. unpack() throws BadRequest when `packed` is not of
/// such a tensor's type and size.
at::Tensor pack(const KfacCounters& counters);
/// Returns the counters that pack() packed.
KfacCounters unpack(const at::Tensor& packed);

}  // namespace spillway::kfac
