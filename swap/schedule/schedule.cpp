#include "swap/schedule/schedule.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <utility>

#include "swap/schedule/candidate.h"
#include "swap/schedule/host_overflow.h"
#include "swap/schedule/lower_bound.h"

namespace spillway::swap {
namespace {

/// Returns a bound for steps whose operators take their typical times: no schedule is faster.
double typical_bound(StepTrace trace, const ScheduleInputs& inputs) {
  for (OperatorRecord& op : trace.operators) op.excess_seconds = 0;
  trace.tail_excess_seconds = 0;
  return bound_seconds(trace, inputs.budget_bytes, inputs.rates);
}

/// The operators that the candidates of a search have together at most. Long steps gain little from many candidates:
/// ResNet-50's and the U-Net's steps with K-FAC, at 50 and 75 % of their peaks, less than 0.5 % from 12 to 300 of them.
constexpr int64_t kMaxOperators = 1'000'000;

int32_t candidates_for(const StepTrace& trace, const ScheduleInputs& inputs) {
  const int64_t most = kMaxOperators / std::max<int64_t>(1, std::ssize(trace.operators));
  return static_cast<int32_t>(std::min<int64_t>(inputs.candidates, most));
}

/// Improves one candidate step by step while simulations are left.
class Search {
 public:
  Search(const StepTrace& trace, const ScheduleInputs& inputs)
      : trace_(trace),
        inputs_(inputs),
        good_enough_(inputs.good_enough * typical_bound(trace, inputs)),
        left_(candidates_for(trace, inputs)) {}

  /// Returns the best candidate. It is not feasible when even on demand the trace does not fit.
  Candidate run() {
    best_ = evaluate(trace_, inputs_, {});
    if (!best_.outcome.feasible && inputs_.slack_bytes > 0) {
      inputs_.slack_bytes = 0;
      best_ = evaluate(trace_, inputs_, {});
    }
    if (!best_.outcome.feasible) return std::move(best_);
    if (std::any_of(trace_.operators.begin(), trace_.operators.end(), [](auto& op) { return !op.streamed.empty(); })) {
      Choices choices;
      choices.fetch_streamed = true;
      attempt(std::move(choices));
    }
    Choices prefetch_early;
    prefetch_early.prefetch_early.assign(trace_.slots.size(), true);
    prefetch_early.fetch_streamed = best_.choices.fetch_streamed;
    attempt(std::move(prefetch_early));
    try_early_departures();
    for (bool improved = true; improved && !done();) {
      improved = false;
      if (inputs_.replay) improved |= try_replays();
      improved |= try_biases();
      improved |= try_departures();
    }
    while (!done() && !slots_.empty()) perturb();
    return std::move(best_);
  }

 private:
  /// The bound knows no messages.
  bool done() const {
    const Simulated& best = best_.outcome;
    return left_ <= 0 || (best.feasible && best.seconds - best.message_seconds <= good_enough_);
  }

  bool attempt(Choices choices) {
    if (done()) return false;
    --left_;
    Candidate candidate = evaluate(trace_, inputs_, std::move(choices));
    if (!better(candidate.outcome, best_.outcome)) return false;
    best_ = std::move(candidate);
    return true;
  }

  static bool better(const Simulated& a, const Simulated& b) {
    if (a.feasible != b.feasible) return a.feasible;
    if (std::abs(a.seconds - b.seconds) > 1e-9 * b.seconds) return a.seconds < b.seconds;
    return a.bytes_out + a.bytes_in < b.bytes_out + b.bytes_in;
  }

  /// Tries every gap that a replay can fill: gaps that the best candidate fills by copies first, then by their gain.
  bool try_replays() {
    if (gaps_.empty()) find_gaps();
    std::vector<std::tuple<bool, double, const Replay*>> ordered;
    for (const auto& [gain, replay] : gaps_) {
      const bool leaves =
          std::any_of(best_.evictions.begin(), best_.evictions.end(), [&, r = &replay](const Eviction& eviction) {
            return best_.replayed.original_slot[eviction.slot] == r->slot;
          });
      ordered.emplace_back(leaves, gain, &replay);
    }
    std::stable_sort(ordered.begin(), ordered.end(), [](auto& a, auto& b) {
      return std::pair(std::get<0>(a), std::get<1>(a)) > std::pair(std::get<0>(b), std::get<1>(b));
    });
    bool improved = false;
    for (auto& [leaves, gain, replay] : ordered) {
      Choices choices = best_.choices;
      auto same = [&, r = replay](const Replay& other) { return other.slot == r->slot && other.use == r->use; };
      if (std::erase_if(choices.replays, same) == 0) {
        if (!compatible(trace_, *replay, choices.replays)) continue;
        choices.replays.push_back(*replay);
      }
      improved |= attempt(std::move(choices));
    }
    // A replay can run while compute would wait for copies: some operators before its use.
    for (size_t r = 0; r < best_.choices.replays.size(); ++r)
      for (int32_t before = best_.choices.replays[r].before - 1;
           r < best_.choices.replays.size() && before > best_.choices.replays[r].discard_after + 1; --before) {
        Choices choices = best_.choices;
        Replay earlier = choices.replays[r];
        earlier.before = before;
        choices.replays.erase(choices.replays.begin() + r);
        if (!compatible(trace_, earlier, choices.replays)) break;
        choices.replays.insert(choices.replays.begin() + r, std::move(earlier));
        if (!attempt(std::move(choices))) break;
        improved = true;
      }
    return improved;
  }

  /// Tries to let every slot that leaves do so right after its use.
  void try_early_departures() {
    Choices choices = best_.choices;
    for (const Eviction& eviction : best_.evictions) {
      const Slot& slot = best_.replayed.trace.slots[eviction.slot];
      auto after = std::lower_bound(slot.uses.begin(), slot.uses.end(), eviction.at);
      if (after == slot.uses.begin()) continue;
      const int32_t use = best_.replayed.original_operator[*std::prev(after)];
      if (use >= 0) choices.evict_after_use.insert({best_.replayed.original_slot[eviction.slot], use});
    }
    attempt(choices);
    choices = best_.choices;
    choices.prefetch_in_use_order = !choices.prefetch_in_use_order;
    attempt(choices);
  }

  /// True when the slot is used again after `use`, but not by the next operator.
  bool idle_after(const Slot& slot, int32_t use) const {
    const int64_t next = next_use_after(trace_, slot, use);
    return next != kNextUseUnknown && next - use > 1;
  }

  /// Tries to evict slots that stay although they are not used for a while. That may make room for slots that have to
  /// come back.
  bool try_departures() {
    bool improved = false;
    for (int32_t s : slots_) {
      const Slot& slot = trace_.slots[s];
      for (int32_t use : slot.uses) {
        if (!idle_after(slot, use)) continue;
        Choices choices = best_.choices;
        flip(choices.evict_after_use, {s, use});
        improved |= attempt(std::move(choices));
      }
    }
    return improved;
  }

  static void flip(std::set<EvictionPoint>& evict_after_use, const EvictionPoint& departure) {
    if (evict_after_use.erase(departure) == 0) evict_after_use.insert(departure);
  }

  /// Tries several choices at once, at random, for gains that no single one brings. The sequence is the same in every
  /// run.
  void perturb() {
    Choices choices = best_.choices;
    auto pick = [&](size_t count) { return random_() % count; };
    for (size_t n = 1 + pick(3); n > 0; --n) {
      const int32_t slot = slots_[pick(slots_.size())];
      switch (pick(gaps_.empty() ? 4 : 5)) {
        case 0:
          choices.bias[slot] = static_cast<EvictionBias>(pick(3));
          break;
        case 1:
          choices.prefetch_early.resize(trace_.slots.size(), false);
          choices.prefetch_early[slot].flip();
          break;
        case 2: {
          const Slot& x = trace_.slots[slot];
          if (x.uses.empty()) break;
          flip(choices.evict_after_use, {slot, x.uses[pick(x.uses.size())]});
          break;
        }
        case 3:
          choices.prefetch_in_use_order = !choices.prefetch_in_use_order;
          break;
        default: {
          const Replay& replay = gaps_[pick(gaps_.size())].second;
          auto same = [&](const Replay& other) { return other.slot == replay.slot; };
          if (std::erase_if(choices.replays, same) == 0 && compatible(trace_, replay, choices.replays))
            choices.replays.push_back(replay);
        }
      }
    }
    attempt(std::move(choices));
  }

  void find_gaps() {
    for (int32_t s = 0; s < std::ssize(trace_.slots); ++s) {
      const Slot& slot = trace_.slots[s];
      for (size_t u = 1; u < slot.uses.size(); ++u) {
        if (slot.uses[u] - slot.uses[u - 1] < 2) continue;
        Replay replay = replay_before(trace_, s, slot.uses[u]);
        if (replay.operators.empty()) continue;
        const auto bytes = static_cast<double>(slot.bytes);
        double gain = bytes / inputs_.rates.in_bytes_per_second + bytes / inputs_.rates.out_bytes_per_second;
        for (int32_t i : replay.operators) gain -= trace_.operators[i].seconds;
        gaps_.emplace_back(gain, std::move(replay));
      }
    }
  }

  /// Tries biases. Each slot that is not used for a while may be worth keeping, or evicting instead of another. The
  /// slots that leave now come first, then the largest.
  bool try_biases() {
    std::vector<std::tuple<bool, int64_t, int32_t>> slots;
    for (int32_t s = 0; s < std::ssize(trace_.slots); ++s) {
      const Slot& slot = trace_.slots[s];
      const bool leaves = std::any_of(best_.evictions.begin(), best_.evictions.end(), [&](const Eviction& eviction) {
        return best_.replayed.original_slot[eviction.slot] == s;
      });
      const bool gap =
          std::any_of(slot.uses.begin(), slot.uses.end(), [&](int32_t use) { return idle_after(slot, use); });
      if (leaves || gap || best_.choices.bias.count(s)) slots.emplace_back(leaves, slot.bytes, s);
    }
    std::sort(slots.rbegin(), slots.rend());
    slots_.clear();
    for (auto& [leaves, bytes, slot] : slots) slots_.push_back(slot);
    bool improved = false;
    for (auto& [leaves, bytes, slot] : slots)
      for (EvictionBias bias : {EvictionBias::keep, EvictionBias::first, EvictionBias::neutral}) {
        Choices choices = best_.choices;
        auto now = choices.bias.find(slot);
        if ((now == choices.bias.end() ? EvictionBias::neutral : now->second) == bias) continue;
        if (bias == EvictionBias::neutral)
          choices.bias.erase(now);
        else
          choices.bias[slot] = bias;
        std::erase_if(choices.replays, [&, slot = slot](const Replay& replay) { return replay.slot == slot; });
        improved |= attempt(std::move(choices));
      }
    return improved;
  }

  const StepTrace& trace_;
  ScheduleInputs inputs_;
  const double good_enough_;
  int32_t left_;
  Candidate best_;
  std::vector<std::pair<double, Replay>> gaps_;  // seconds gained by a replay
  std::vector<int32_t> slots_;                   // slots that are worth a bias
  std::minstd_rand random_{1};
};

void take_prediction(Schedule& schedule, const Simulated& outcome) {
  schedule.bytes_out = outcome.bytes_out;
  schedule.bytes_in = outcome.bytes_in;
  schedule.predicted_seconds = outcome.seconds;
  schedule.exposed_seconds = outcome.exposed_seconds;
  schedule.message_seconds = outcome.message_seconds;
  schedule.predicted_peak_bytes = std::max(schedule.predicted_peak_bytes, outcome.peak_bytes);
}

/// Translates the schedule from the candidate's trace, in which replays are operators, to the trace as it was recorded.
Schedule translate(const StepTrace& trace, Candidate candidate) {
  Schedule schedule;
  const std::vector<int32_t>& original = candidate.replayed.original_operator;
  auto slot_of = [&](int32_t s) { return candidate.replayed.original_slot[s]; };
  // After a replay means after the operator before it, because the replay and the operator that needs it run as one.
  std::vector<int32_t> after(original.size() + 1, -1);
  for (size_t i = 0; i < original.size(); ++i) after[i + 1] = original[i] >= 0 ? original[i] : after[i];
  schedule.actions.page_outs_after.resize(trace.operators.size());
  schedule.actions.releases_after.resize(trace.operators.size());
  schedule.resident_bytes.resize(trace.operators.size());
  schedule.ends.resize(trace.operators.size());
  for (size_t i = 0; i < original.size(); ++i) {
    // A slot that a replay made can be copied out once its user has run.
    size_t at = i;
    while (original[at] < 0) ++at;
    const size_t to = original[at];
    for (int32_t s : candidate.actions.page_outs_after[i]) schedule.actions.page_outs_after[to].push_back(slot_of(s));
    if (after[i + 1] >= 0)
      for (int32_t s : candidate.actions.releases_after[i])
        schedule.actions.releases_after[after[i + 1]].push_back(slot_of(s));
    schedule.resident_bytes[to] = std::max(schedule.resident_bytes[to], candidate.outcome.resident_bytes[i]);
    schedule.ends[to] = candidate.outcome.ends[i];
  }
  for (const Actions::PageIn& in : candidate.actions.page_ins) {
    const int32_t count = original.size();
    size_t use = in.use % count;
    while (original[use] < 0) ++use;
    const int32_t needed = original[use] + (in.use >= count ? std::ssize(trace.operators) : 0);
    const int32_t trigger = after[in.trigger + 1];
    schedule.actions.page_ins.push_back({slot_of(in.slot), std::min(trigger, needed - 1), needed});
  }
  schedule.replays = std::move(candidate.choices.replays);
  schedule.simulated_actions = std::move(candidate.actions);
  schedule.simulated_on_disk = std::move(candidate.on_disk);
  schedule.host_bytes = host_peak_bytes(candidate.replayed.trace, candidate.evictions);
  take_prediction(schedule, candidate.outcome);
  return schedule;
}

}  // namespace

Schedule make_schedule(const StepTrace& trace, const ScheduleInputs& given) {
  ScheduleInputs inputs = given;
  // A trace that fits as it is needs no slack: nothing leaves, and were it a little more, demand would see to it.
  if (trace.unconstrained_peak_bytes() <= inputs.budget_bytes) inputs.slack_bytes = 0;
  Candidate best = Search(trace, inputs).run();
  Schedule schedule;
  if (best.outcome.feasible) {
    schedule = translate(trace, std::move(best));
  } else {  // demand will report the operator that does not fit
    schedule.on_demand = true;
    schedule.actions.page_outs_after.resize(trace.operators.size());
    schedule.actions.releases_after.resize(trace.operators.size());
  }
  schedule.bound_seconds = bound_seconds(trace, inputs.budget_bytes, inputs.rates);
  const Simulated on_demand = simulate(trace, {.budget_bytes = inputs.budget_bytes,
                                               .small_bytes = inputs.small_bytes,
                                               .costly_bytes = inputs.costly_bytes,
                                               .rates = &inputs.rates});
  if (!on_demand.feasible) return schedule;
  if (schedule.on_demand) {
    schedule.resident_bytes = on_demand.resident_bytes;
    schedule.ends = on_demand.ends;
    schedule.host_bytes = host_peak_bytes(trace, on_demand.evictions);
    take_prediction(schedule, on_demand);
  }
  schedule.predicted_peak_bytes = std::max(schedule.predicted_peak_bytes, on_demand.peak_bytes);
  return schedule;
}

void predict_again(Schedule& schedule, const StepTrace& trace, const ScheduleInputs& inputs) {
  schedule.bound_seconds = bound_seconds(trace, inputs.budget_bytes, inputs.rates);
  if (schedule.on_demand) {
    const Simulated on_demand = simulate(trace, {.budget_bytes = inputs.budget_bytes,
                                                 .small_bytes = inputs.small_bytes,
                                                 .costly_bytes = inputs.costly_bytes,
                                                 .rates = &inputs.rates});
    if (on_demand.feasible) take_prediction(schedule, on_demand);
    return;
  }
  const ReplayedTrace replayed = with_replays(trace, schedule.replays);
  const Simulated outcome = simulate(replayed.trace, {.budget_bytes = inputs.budget_bytes,
                                                      .small_bytes = inputs.small_bytes,
                                                      .costly_bytes = inputs.costly_bytes,
                                                      .rates = &inputs.rates,
                                                      .actions = &schedule.simulated_actions,
                                                      .on_disk = &schedule.simulated_on_disk});
  if (outcome.feasible) take_prediction(schedule, outcome);
}

}  // namespace spillway::swap
