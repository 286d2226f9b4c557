#include "kfac/kfac_state.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <sstream>

#include "core/error.h"
#include "ddl/comm/communicator.h"
#include "kfac/factors/stored_matrix.h"
#include "kfac/kfac.h"

namespace spillway::kfac {
namespace {

constexpr const char* kCounters = "counters";

std::vector<int64_t> all_ranks(int64_t world) {
  std::vector<int64_t> ranks(world);
  std::iota(ranks.begin(), ranks.end(), int64_t{0});
  return ranks;
}

std::string describe(at::ScalarType type, at::IntArrayRef sizes) {
  std::ostringstream out;
  out << type << ' ' << sizes;
  return out.str();
}

// Returns the fault of the entry of `state` that should be `name`; empty when the entry fits.
std::string mismatch(const StateDict& state, size_t at, const std::string& name, at::ScalarType type,
                     at::IntArrayRef sizes) {
  if (at >= state.size()) return str("'", name, "' is missing: the state ends after ", state.size(), " tensors");
  const auto& [found, tensor] = state[at];
  if (found != name) return str("'", name, "' is expected where the state has '", found, "'");
  if (!tensor.defined() || tensor.scalar_type() != type || tensor.sizes() != sizes)
    return str("'", name, "' is ", describe(type, sizes), " here and ",
               tensor.defined() ? describe(tensor.scalar_type(), tensor.sizes()) : "undefined", " in the state");
  return {};
}

}  // namespace

std::vector<StateEntry> state_entries(const Kfac& kfac) {
  std::vector<StateEntry> entries;
  for (size_t i = 0; i < kfac.layers().size(); ++i) {
    const LayerShape& shape = kfac.layers()[i].shape;
    const Assignment& assignment = kfac.assignments()[i];
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
    add(factor_tensors(shape), kfac.held_factors(i), holders);
    const auto factors = shape.factors();
    for (size_t f = 0; kfac.options().staleness > 0 && f < factors.size(); ++f) {
      const auto [role, side, count] = factors[f];
      const auto [vectors, values] = kfac.pending_basis(i, f);
      const std::vector<int64_t> owner{assignment.owners[f]};
      entries.push_back({str(shape.name, "/upcoming_vectors", f), own_type, {count, side, side}, vectors, owner});
      entries.push_back({str(shape.name, "/upcoming_values", f), own_type, {count, side}, values, owner});
    }
    add(inverse_tensors(shape), kfac.inverse(i), assignment.workers);
  }
  return entries;
}

StateDict Kfac::state_dict() const {
  at::NoGradGuard no_grad;
  StateDict state;
  for (const StateEntry& entry : state_entries(*this)) {
    const auto type = layers_.front().weight.options().dtype(entry.type);
    auto copy = at::empty(entry.sizes, type);
    if (entry.held.defined()) copy.copy_(entry.held);
    if (std::ssize(entry.holders) < exchange_.world())
      exchange_.broadcast_({copy}, entry.holders.front(), all_ranks(exchange_.world()));
    state.emplace_back(entry.name, std::move(copy));
  }
  state.emplace_back(kCounters, pack(counters()));
  return state;
}

void Kfac::load_state_dict(const StateDict& state) {
  at::NoGradGuard no_grad;
  const auto entries = state_entries(*this);
  const auto refuse = [](const std::string& fault) {
    if (!fault.empty())
      throw BadRequest("[kfac.load_state_dict] the state is not of this model and these options: " + fault);
  };
  for (size_t i = 0; i < entries.size(); ++i)
    refuse(mismatch(state, i, entries[i].name, entries[i].type, entries[i].sizes));
  refuse(mismatch(state, entries.size(), kCounters, at::kLong, pack(counters_).sizes()));
  if (state.size() > entries.size() + 1) refuse(str("'", state[entries.size() + 1].first, "' has no place here"));
  for (size_t i = 0; i < entries.size(); ++i)
    if (entries[i].held.defined()) entries[i].held.copy_(state[i].second);
  discard();
  resume(unpack(state.back().second));
}

}  // namespace spillway::kfac
