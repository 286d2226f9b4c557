#include "runtime/training/kfac_state.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "ddl/comm/communicator.h"
#include "ddl/torch/comm.h"
#include "kfac/state_entry.h"

namespace spillway::runtime {
namespace {

constexpr const char* kCounters = "kfac/counters";

/// Returns a function that brings a tensor of rank `from` to rank 0's host, because rank 0 does not hold it.
std::function<at::Tensor()> fetch(const ddl::Comm& comm, const StateTensor& tensor, int64_t from) {
  return [comm, from, held = tensor.held, type = tensor.type, sizes = tensor.sizes] {
    const int64_t rank = comm->communicator->rank();
    at::Tensor there = rank == 0 ? at::empty(sizes, type) : rank == from ? held.to(at::kCPU) : held;
    if (rank == 0 || rank == from) ddl::broadcast_({there}, comm, from, {from, 0});
    return there;
  };
}

}  // namespace

void add_kfac_state(const kfac::Kfac& kfac, const ddl::Comm& comm, std::vector<StateTensor>& state) {
  for (kfac::StateEntry& entry : kfac::state_entries(kfac)) {
    StateTensor tensor("kfac/" + entry.name, entry.type, std::move(entry.sizes));
    tensor.held = entry.held;
    if (entry.holders.front() != 0) tensor.fetch = fetch(comm, tensor, entry.holders.front());
    state.push_back(std::move(tensor));
  }
  state.emplace_back(kCounters, kfac::pack(kfac.counters()));
}

void resume_kfac(kfac::Kfac& kfac, const std::vector<StateTensor>& state) {
  const auto found = std::find_if(state.begin(), state.end(), [](const StateTensor& t) { return t.name == kCounters; });
  TORCH_CHECK(found != state.end(), "[kfac_state] there are no counters among ", state.size(), " tensors");
  kfac.resume(kfac::unpack(found->held));
}

}  // namespace spillway::runtime
