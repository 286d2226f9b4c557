#include "runtime/kfac_state.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "core/error.h"

namespace spillway {
namespace {

constexpr const char* kCounters = "kfac/counters";

/// Brings a tensor of worker `from` to rank 0, where there is none.
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
  return at::tensor({c.steps, c.factor_updates, c.decompositions, c.dropped_factors, c.failed_decompositions},
                    at::kLong);
}

}  // namespace

void add_kfac_state(const kfac::Kfac& kfac, const ddl::Comm& comm, std::vector<StateTensor>& state) {
  const int64_t rank = comm ? comm->communicator->rank() : 0;
  for (size_t i = 0; i < kfac.layers().size(); ++i) {
    const kfac::LayerShape& shape = kfac.layers()[i].shape;
    const kfac::Assignment& assignment = kfac.assignments()[i];
    const std::vector<at::Tensor>& factors = kfac.factors(i);
    for (size_t f = 0; f < factors.size(); ++f) {
      const std::string layer = str("kfac/", shape.name, "/");
      const int64_t side = factors[f].size(1);
      state.emplace_back(str(layer, "factor", f), factors[f]);
      StateTensor vectors(str(layer, "vectors", f), factors[f].scalar_type(), {shape.groups, side, side});
      StateTensor values(str(layer, "values", f), factors[f].scalar_type(), {shape.groups, side});
      if (assignment.is_worker(rank)) {
        vectors.held = kfac.eigenbases(i)[f].vectors;
        values.held = kfac.eigenbases(i)[f].values;
      }
      for (StateTensor* tensor : {&vectors, &values}) {
        if (!assignment.is_worker(0)) tensor->fetch = fetch(comm, *tensor, assignment.workers.front());
        state.push_back(std::move(*tensor));
      }
    }
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
               .failed_decompositions = count(4)});
}

}  // namespace spillway
