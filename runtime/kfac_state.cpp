#include "runtime/kfac_state.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>

#include "core/error.h"

namespace spillway {
namespace {

constexpr const char* kCounters = "kfac/counters";

/// Brings a tensor of rank `from` to rank 0, where there is none.
std::function<at::Tensor()> fetch(const ddl::Comm& comm, const StateTensor& tensor, int64_t from) {
  return [comm, from, held = tensor.held, type = tensor.type, sizes = tensor.sizes] {
    const int64_t rank = comm->communicator->rank();
    at::Tensor there = held;
    if (rank == 0) there = at::empty(sizes, type);
    if (rank == 0 || rank == from) ddl::broadcast_({there}, comm, from, {from, 0});
    return there;
  };
}

at::Tensor pack(const kfac::KfacCounters& c) {
  return at::tensor(
      {c.steps, c.factor_updates, c.decompositions, c.dropped_factors, c.failed_decompositions, c.last_factor_step,
       c.last_decomposition_step, c.last_adaptation, std::bit_cast<int64_t>(c.damping_scale)},
      at::kLong);
}

}  // namespace

void add_kfac_state(const kfac::Kfac& kfac, const ddl::Comm& comm, std::vector<StateTensor>& state) {
  const int64_t rank = comm ? comm->communicator->rank() : 0;
  for (size_t i = 0; i < kfac.layers().size(); ++i) {
    const kfac::LayerShape& shape = kfac.layers()[i].shape;
    const kfac::Assignment& assignment = kfac.assignments()[i];
    const at::ScalarType type = kfac::state_options(kfac.layers()[i].weight).dtype().toScalarType();
    const std::string layer = str("kfac/", shape.name, "/");
    // `from` holds it where rank 0 does not.
    const auto add = [&](StateTensor tensor, const at::Tensor& held, bool on_rank_0, int64_t from) {
      tensor.held = held;
      if (!on_rank_0) tensor.fetch = fetch(comm, tensor, from);
      state.push_back(std::move(tensor));
    };
    for (size_t f = 0; f < shape.factors().size(); ++f) {
      const int64_t side = shape.factors()[f].side;
      add({str(layer, "factor", f), type, {shape.groups, side, side}},
          assignment.holds_factors(rank) ? kfac.factors(i)[f] : at::Tensor(), assignment.holds_factors(0),
          assignment.owners.front());
    }
    const auto tensors = kfac::inverse_tensors(shape);
    for (size_t t = 0; t < tensors.size(); ++t)
      add({layer + tensors[t].name, type, tensors[t].sizes},
          assignment.is_worker(rank) ? kfac.inverse(i)[t] : at::Tensor(), assignment.is_worker(0),
          assignment.workers.front());
  }
  state.emplace_back(kCounters, pack(kfac.counters()));
}

void resume_kfac(kfac::Kfac& kfac, const std::vector<StateTensor>& state) {
  const auto found = std::find_if(state.begin(), state.end(), [](const StateTensor& t) { return t.name == kCounters; });
  TORCH_CHECK(found != state.end(), "[kfac_state] there are no counters among ", state.size(), " tensors");
  auto count = [&](int64_t i) { return found->held[i].item<int64_t>(); };
  kfac.resume({.steps = count(0),
               .factor_updates = count(1),
               .decompositions = count(2),
               .dropped_factors = count(3),
               .failed_decompositions = count(4),
               .last_factor_step = count(5),
               .last_decomposition_step = count(6),
               .last_adaptation = count(7),
               .damping_scale = std::bit_cast<double>(count(8))});
}

}  // namespace spillway
