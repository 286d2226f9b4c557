// A Kfac's state as one dictionary that every rank holds.
#include <ATen/ATen.h>

#include <numeric>
#include <sstream>

#include "core/error.h"
#include "kfac/kfac.h"
#include "kfac/parts.h"
#include "kfac/plan/counters.h"
#include "kfac/state_entry.h"

namespace spillway::kfac {
namespace {

constexpr const char* kCounters = "counters";

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

StateDict Kfac::state_dict() const {
  at::NoGradGuard no_grad;
  parts_->refresh.finish();
  const RankExchange& exchange = parts_->setup.exchange;
  std::vector<int64_t> everyone(exchange.world());
  std::iota(everyone.begin(), everyone.end(), int64_t{0});
  StateDict state;
  for (const StateEntry& entry : state_entries(*this, parts_->tally.counters.steps)) {
    const auto type = layers().front().weight.options().dtype(entry.type);
    auto copy = at::empty(entry.sizes, type);
    if (entry.held.defined()) copy.copy_(entry.held);
    if (std::ssize(entry.holders) < exchange.world()) exchange.broadcast_({copy}, entry.holders.front(), everyone);
    state.emplace_back(entry.name, std::move(copy));
  }
  state.emplace_back(kCounters, pack(counters()));
  return state;
}

void Kfac::load_state_dict(const StateDict& state) {
  at::NoGradGuard no_grad;
  const auto refuse = [](const std::string& fault) {
    if (!fault.empty())
      throw BadRequest("[kfac.load_state_dict] the state is not of this model and these options: " + fault);
  };
  // The counters tell which layers have an inverse for later steps.
  const bool ends = !state.empty() && state.back().first == kCounters && state.back().second.defined();
  const auto counters = ends ? unpack(state.back().second) : KfacCounters{};
  auto entries = state_entries(*this, counters.steps);
  for (size_t i = 0; i < entries.size(); ++i)
    refuse(mismatch(state, i, entries[i].name, entries[i].type, entries[i].sizes));
  refuse(mismatch(state, entries.size(), kCounters, at::kLong, pack(KfacCounters{}).sizes()));
  if (state.size() > entries.size() + 1) refuse(str("'", state[entries.size() + 1].first, "' has no place here"));
  parts_->resume(counters);  // makes those inverses
  discard();
  entries = state_entries(*this, counters.steps);
  for (size_t i = 0; i < entries.size(); ++i)
    if (entries[i].held.defined()) entries[i].held.copy_(state[i].second);
  parts_->resume(counters);  // takes the curvatures that were read
}

}  // namespace spillway::kfac
