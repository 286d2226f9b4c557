#include "kfac/state_entry.h"

#include <ATen/ATen.h>

#include <bit>
#include <numeric>

#include "core/error.h"
#include "kfac/factors/stored_matrix.h"
#include "kfac/inverse/eigenbasis.h"
#include "kfac/kfac.h"
#include "kfac/plan/assignment.h"
#include "kfac/plan/counters.h"

namespace spillway::kfac {
namespace {

constexpr int64_t kCounterCount = 11;

std::vector<int64_t> all_ranks(int64_t world) {
  std::vector<int64_t> ranks(world);
  std::iota(ranks.begin(), ranks.end(), int64_t{0});
  return ranks;
}

}  // namespace

std::vector<StateEntry> state_entries(const Kfac& kfac, int64_t steps) {
  std::vector<StateEntry> entries;
  for (size_t i = 0; i < kfac.layers().size(); ++i) {
    const LayerShape& shape = kfac.layers()[i].shape;
    const Assignment& assignment = kfac.state().assignments()[i];
    const at::ScalarType own_type = state_options(kfac.layers()[i].weight).dtype().toScalarType();
    const at::ScalarType storage = storage_type(shape.storage, own_type);
    const std::vector<int64_t> holders = assignment.home == FactorScope::everywhere
                                             ? all_ranks(assignment.world())
                                             : std::vector<int64_t>{assignment.owners.front()};
    const auto add = [&](const std::vector<HeldTensor>& tensors, const std::vector<at::Tensor>& held,
                         const std::vector<int64_t>& ranks) {
      for (size_t t = 0; t < tensors.size(); ++t)
        entries.push_back({str(shape.name, "/", tensors[t].name), tensors[t].in_storage ? storage : own_type,
                           tensors[t].sizes, held.empty() ? at::Tensor() : held[t], ranks});
    };
    add(factor_tensors(shape), kfac.state().held_factors(i), holders);
    const auto factors = shape.factors();
    for (size_t f = 0; kfac.options().staleness > 0 && f < factors.size(); ++f) {
      const auto [role, side, count, rank] = factors[f];
      const auto [vectors, values] = kfac.state().pending_basis(i, f);
      const std::vector<int64_t> owner{assignment.owners[f]};
      entries.push_back({str(shape.name, "/upcoming_vectors", f), own_type, {count, side, side}, vectors, owner});
      entries.push_back({str(shape.name, "/upcoming_values", f), own_type, {count, side}, values, owner});
    }
    add(inverse_tensors(shape), kfac.state().inverse(i), assignment.workers);
    if (const auto& next = kfac.state().next_inverse(i); kfac.state().renews(i, steps)) {
      const auto tensors = inverse_tensors(shape);
      for (size_t t = 0; t < tensors.size(); ++t)
        entries.push_back({str(shape.name, "/next_", tensors[t].name), tensors[t].in_storage ? storage : own_type,
                           tensors[t].sizes, next.empty() ? at::Tensor() : next[t], assignment.workers});
    }
    if (const auto& largest = kfac.state().largest_curvature(); largest.defined())
      entries.push_back({str(shape.name, "/largest_curvature"),
                         largest.scalar_type(),
                         {},
                         largest[static_cast<int64_t>(i)],
                         all_ranks(assignment.world())});
  }
  return entries;
}

at::Tensor pack(const KfacCounters& c) {
  return at::tensor({c.steps, c.factor_updates, c.decompositions, c.dropped_factors, c.failed_decompositions,
                     c.warm_starts, c.last_factor_step, c.last_decomposition_step, c.last_launch_step,
                     c.last_adaptation, std::bit_cast<int64_t>(c.damping_scale)},
                    at::kLong);
}

KfacCounters unpack(const at::Tensor& packed) {
  if (!packed.defined() || packed.scalar_type() != at::kLong || packed.numel() != kCounterCount)
    throw BadRequest(str("[kfac.unpack] counters are ", kCounterCount, " int64 numbers"));
  const auto host = packed.cpu();
  const auto count = [&](int64_t i) { return host[i].item<int64_t>(); };
  return {.steps = count(0),
          .factor_updates = count(1),
          .decompositions = count(2),
          .dropped_factors = count(3),
          .failed_decompositions = count(4),
          .warm_starts = count(5),
          .last_factor_step = count(6),
          .last_decomposition_step = count(7),
          .last_launch_step = count(8),
          .last_adaptation = count(9),
          .damping_scale = std::bit_cast<double>(count(10))};
}

}  // namespace spillway::kfac
