#include "swap/schedule/candidate.h"

#include <algorithm>

#include "swap/schedule/host_overflow.h"
#include "swap/schedule/place_page_ins.h"

namespace spillway::swap {
namespace {

/// Returns the operator after which a copy out can start: the last write before the eviction, in the step before if
/// need be.
int32_t page_out_trigger(const StepTrace& trace, const Eviction& eviction) {
  const Slot& slot = trace.slots[eviction.slot];
  auto after = std::lower_bound(slot.writes.begin(), slot.writes.end(), eviction.at);
  if (after != slot.writes.begin()) return *std::prev(after);
  if (slot.birth >= 0) return slot.birth;
  return slot.writes.empty() || slot.death != kOutlivesStep ? 0 : slot.writes.back();
}

/// The choices by slot and operator of the replayed trace.
struct ReplayedChoices {
  std::vector<EvictionBias> bias;
  std::vector<bool> prefetch_early;
  std::vector<std::vector<int32_t>> evictions_after;
};

ReplayedChoices translate_choices(const ReplayedTrace& replayed, const Choices& choices) {
  const size_t slots = replayed.trace.slots.size();
  ReplayedChoices translated{
      std::vector<EvictionBias>(slots, EvictionBias::neutral), std::vector<bool>(slots, false), {}};
  translated.evictions_after.resize(replayed.trace.operators.size());
  for (size_t s = 0; s < slots; ++s) {
    const int32_t original = replayed.original_slot[s];
    if (auto bias = choices.bias.find(original); bias != choices.bias.end()) translated.bias[s] = bias->second;
    if (!choices.prefetch_early.empty()) translated.prefetch_early[s] = choices.prefetch_early[original];
    if (choices.evict_after_use.empty()) continue;
    for (int32_t use : replayed.trace.slots[s].uses)
      if (choices.evict_after_use.count({original, replayed.original_operator[use]}))
        translated.evictions_after[use].push_back(s);
  }
  return translated;
}

/// Adds page-outs and releases for every slot that leaves.
void add_page_outs(const StepTrace& trace, const std::vector<Eviction>& evictions, const ReplayedChoices& translated,
                   Actions& actions) {
  auto left_after_use = [&](const Eviction& eviction) {
    const auto& here = translated.evictions_after[std::max(eviction.at - 1, 0)];
    return std::find(here.begin(), here.end(), eviction.slot) != here.end();
  };
  actions.page_outs_after.resize(trace.operators.size());
  actions.releases_after.resize(trace.operators.size());
  for (const Eviction& eviction : evictions) {
    // A clean slot that is evicted after its use has a copy only if something made one, once.
    if (eviction.copied || left_after_use(eviction))
      actions.page_outs_after[page_out_trigger(trace, eviction)].push_back(eviction.slot);
    if (eviction.at > 0) actions.releases_after[eviction.at - 1].push_back(eviction.slot);
  }
}

}  // namespace

Candidate evaluate(const StepTrace& trace, const ScheduleInputs& inputs, Choices choices) {
  Candidate candidate{std::move(choices), {}, {}, {}, {}, {}};
  candidate.replayed = with_replays(trace, candidate.choices.replays);
  const StepTrace& replayed = candidate.replayed.trace;
  const ReplayedChoices translated = translate_choices(candidate.replayed, candidate.choices);
  const int64_t limit_bytes = inputs.budget_bytes - inputs.slack_bytes;

  // The plan: which slots leave when, were copies instant.
  const Simulated plan = simulate(replayed, {.budget_bytes = limit_bytes,
                                             .small_bytes = inputs.small_bytes,
                                             .costly_bytes = inputs.costly_bytes,
                                             .bias = &translated.bias,
                                             .evictions_after = &translated.evictions_after,
                                             .fetch_streamed = candidate.choices.fetch_streamed});
  candidate.outcome.feasible = plan.feasible;
  if (!plan.feasible) return candidate;
  candidate.evictions = plan.evictions;
  candidate.on_disk = overflow(replayed, plan.evictions, inputs.host_budget_bytes);
  add_page_outs(replayed, plan.evictions, translated, candidate.actions);
  candidate.actions.page_ins = place_page_ins({.trace = replayed,
                                               .plan = plan,
                                               .limit_bytes = limit_bytes,
                                               .rates = inputs.rates,
                                               .on_disk = candidate.on_disk,
                                               .prefetch_early = translated.prefetch_early,
                                               .prefetch_in_use_order = candidate.choices.prefetch_in_use_order});
  // The outcome of that plan with copies that take time.
  candidate.outcome = simulate(replayed, {.budget_bytes = inputs.budget_bytes,
                                          .small_bytes = inputs.small_bytes,
                                          .costly_bytes = inputs.costly_bytes,
                                          .rates = &inputs.rates,
                                          .actions = &candidate.actions,
                                          .on_disk = &candidate.on_disk});
  return candidate;
}

}  // namespace spillway::swap
