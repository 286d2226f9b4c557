/// The tensors of a Kfac's state.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace spillway::kfac {

struct KfacCounters;

/// One tensor of the state, the same on all ranks that hold it.
struct StateEntry {
  std::string name;  ///< `LAYER/factor0`, `LAYER/upcoming_vectors0`, `LAYER/vectors0`, …
  at::ScalarType type;
  std::vector<int64_t> sizes;
  at::Tensor held;               ///< the tensor itself; undefined where this rank does not hold it
  std::vector<int64_t> holders;  ///< ranks, ascending
};

/// Packs the counters into one int64 tensor; unpack() reverses it. unpack() throws BadRequest when `packed` is not of
/// such a tensor's type and size.
at::Tensor pack(const KfacCounters& counters);
KfacCounters unpack(const at::Tensor& packed);

/// The names and tensors in the order of state_entries(), and `counters` last.
using StateDict = std::vector<std::pair<std::string, at::Tensor>>;

}  // namespace spillway::kfac
