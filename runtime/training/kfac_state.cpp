#include "runtime/training/kfac_state.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "kfac/state_entry.h"

namespace spillway::runtime {
namespace {

constexpr const char* kCounters = "kfac/counters";

}  // namespace

void add_kfac_state(const kfac::Kfac& kfac, std::vector<StateTensor>& state) {
  for (kfac::StateEntry& entry : kfac::state_entries(kfac, kfac.counters().steps)) {
    StateTensor tensor("kfac/" + entry.name, entry.type, std::move(entry.sizes));
    tensor.held = entry.held;
    tensor.holder = entry.holders.front();
    state.push_back(std::move(tensor));
  }
  state.emplace_back(kCounters, kfac::pack(kfac.counters()));
}

std::vector<StateTensor> kfac_counters(const kfac::Kfac& kfac) {
  return {StateTensor(kCounters, kfac::pack(kfac.counters()))};
}

void resume_kfac(kfac::Kfac& kfac, const std::vector<StateTensor>& state) {
  const auto found = std::find_if(state.begin(), state.end(), [](const StateTensor& t) { return t.name == kCounters; });
  TORCH_CHECK(found != state.end(), "[kfac_state] there are no counters among ", state.size(), " tensors");
  kfac.resume(kfac::unpack(found->held));
}

}  // namespace spillway::runtime
