#include "runtime/training/kfac_state.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "kfac/state_entry.h"
#include "runtime/pipeline/pipeline.h"
#include "runtime/training/whole_state.h"

namespace spillway::runtime {
namespace {

constexpr const char* kCounters = "kfac/counters";

/// The counts that differ from stage to stage.
constexpr int64_t kfac::KfacCounters::*kOfStages[] = {
    &kfac::KfacCounters::dropped_factors, &kfac::KfacCounters::failed_decompositions, &kfac::KfacCounters::warm_starts};

}  // namespace

void add_kfac_state(const kfac::Kfac& kfac, const RunContext& context, std::vector<StateTensor>& state) {
  for (kfac::StateEntry& entry : kfac::state_entries(kfac, kfac.counters().steps)) {
    StateTensor tensor("kfac/" + entry.name, entry.type, std::move(entry.sizes));
    tensor.held = entry.held;
    tensor.holder = entry.holders.front();
    state.push_back(std::move(tensor));
  }
  state.emplace_back(kCounters, kfac::pack(model_counters(kfac, context)));
}

std::vector<StateTensor> kfac_counters(const kfac::Kfac& kfac) {
  return {StateTensor(kCounters, kfac::pack(kfac.counters()))};
}

kfac::KfacCounters model_counters(const kfac::Kfac& kfac, const RunContext& context) {
  kfac::KfacCounters counters = kfac.counters();
  if (!context.pipeline) return counters;
  // The first one of the places with the same stages counts.
  const Pipeline& pipeline = *context.pipeline;
  const bool counts = pipeline.plan.holders_of(pipeline.place).front() == pipeline.place;
  at::Tensor own = at::zeros({1, std::ssize(kOfStages)}, at::kLong);
  for (int64_t i = 0; counts && i < std::ssize(kOfStages); ++i) own[0][i].fill_(counters.*kOfStages[i]);
  const at::Tensor sums = gather_rows(*pipeline.of_copy, own, {pipeline.place}).sum(0);
  for (int64_t i = 0; i < std::ssize(kOfStages); ++i) counters.*kOfStages[i] = sums[i].item<int64_t>();
  return counters;
}

void resume_kfac(kfac::Kfac& kfac, const RunContext& context, const std::vector<StateTensor>& state) {
  const auto found = std::find_if(state.begin(), state.end(), [](const StateTensor& t) { return t.name == kCounters; });
  TORCH_CHECK(found != state.end(), "[kfac_state] there are no counters among ", state.size(), " tensors");
  kfac::KfacCounters counters = kfac::unpack(found->held);
  if (context.pipeline && context.pipeline->place > 0)
    for (const auto count : kOfStages) counters.*count = 0;
  kfac.state().resume(counters);
}

}  // namespace spillway::runtime
