#include "swap/schedule.h"

#include <algorithm>
#include <map>
#include <random>
#include <tuple>
#include <utility>

#include "swap/bound.h"

namespace spillway {
namespace {

/// Copies that take a fifth longer than their rate says still come in time.
constexpr double kCaution = 1.2;

/// What distinguishes one candidate from another.
struct Choices {
  std::vector<Replay> replays;
  std::map<int32_t, Bias> bias;  ///< by slot of the original trace
  std::vector<bool> early;       ///< by slot of the original trace: comes back as soon as there is room
  bool fetch_streamed = false;   ///< what is only streamed comes back too
};

struct Candidate {
  Choices choices;
  ReplayedTrace replayed;
  Actions actions;
  std::vector<Leave> leaves;
  Simulated outcome;
};

/// The operator after which a copy out can start: the last write before the eviction, in the step before if need be.
int32_t page_out_trigger(const StepTrace& trace, const Leave& leave) {
  const Slot& slot = trace.slots[static_cast<size_t>(leave.slot)];
  auto after = std::lower_bound(slot.writes.begin(), slot.writes.end(), leave.at);
  if (after != slot.writes.begin()) return *std::prev(after);
  if (slot.birth >= 0) return slot.birth;
  return slot.writes.empty() || slot.death != kOutlivesStep ? 0 : slot.writes.back();
}

/// Places page-ins backwards from their deadlines, so that the link serves each just before the one that follows it.
class PageInPlacer {
 public:
  PageInPlacer(const StepTrace& trace, const ScheduleInputs& inputs, const Simulated& plan,
               const std::vector<bool>& early)
      : trace_(trace), inputs_(inputs), plan_(plan), early_(early), held_(plan.held) {
    start_.push_back(0);
    for (const OperatorRecord& op : trace.operators) start_.push_back(start_.back() + op.host_seconds + op.seconds);
    link_free_until_ = start_.back();
  }

  std::vector<Actions::PageIn> place() {
    std::vector<Actions::PageIn> page_ins = plan_.demanded;
    std::stable_sort(page_ins.begin(), page_ins.end(), [](auto& a, auto& b) { return a.use > b.use; });
    for (Actions::PageIn& in : page_ins) place(in);
    std::stable_sort(page_ins.begin(), page_ins.end(),
                     [](auto& a, auto& b) { return std::pair(a.trigger, a.use) < std::pair(b.trigger, b.use); });
    return page_ins;
  }

 private:
  /// Sets trigger and use of a page-in that operator in.use needs.
  void place(Actions::PageIn& in) {
    const int64_t bytes = trace_.slots[static_cast<size_t>(in.slot)].bytes;
    const double seconds = kCaution * static_cast<double>(bytes) / inputs_.rates.in_bytes_per_second;
    const double begin = std::min(start_[static_cast<size_t>(in.use)], link_free_until_) - seconds;
    const bool early = early_[static_cast<size_t>(in.slot)];
    const int32_t left_at = last_leave_before(in.slot, in.use);
    in.trigger = walk_back(in.use - 1, left_at, bytes, early, begin);
    link_free_until_ = begin;
    if (in.trigger >= 0 || left_at >= 0) return;
    // Early in the step: it may come at the end of the step before, where it is used in "the next step".
    const auto count = static_cast<int32_t>(trace_.operators.size());
    const int32_t left_before = last_leave_before(in.slot, count);
    const int32_t trigger = walk_back(count - 1, left_before, bytes, early, begin + start_.back());
    if (left_before < 0 || trigger == count - 1) return;
    in = {in.slot, trigger, in.use + count};
  }

  /// From operator `last` towards `left_at`, as far as there is room and reason; the operator to issue it after.
  int32_t walk_back(int32_t last, int32_t left_at, int64_t bytes, bool early, double begin) {
    const int64_t limit = inputs_.budget_bytes - inputs_.slack_bytes;
    int32_t trigger = last;
    while (trigger > left_at && held_[static_cast<size_t>(trigger)] + bytes <= limit &&
           (early || start_[static_cast<size_t>(trigger) + 1] > begin))
      held_[static_cast<size_t>(trigger--)] += bytes;
    return trigger;
  }

  /// -1: it did not leave before; then it was away when the step began. What was born on the host never left.
  int32_t last_leave_before(int32_t slot, int32_t use) const {
    int32_t at = trace_.slots[static_cast<size_t>(slot)].birth;
    for (const Leave& leave : plan_.leaves)
      if (leave.slot == slot && leave.at < use) at = std::max(at, leave.at);
    return at;
  }

  const StepTrace& trace_;
  const ScheduleInputs& inputs_;
  const Simulated& plan_;
  const std::vector<bool>& early_;
  std::vector<int64_t> held_;
  std::vector<double> start_;
  double link_free_until_;
};

Candidate evaluate(const StepTrace& trace, const ScheduleInputs& inputs, Choices choices) {
  Candidate candidate{std::move(choices), {}, {}, {}, {}};
  candidate.replayed = with_replays(trace, candidate.choices.replays);
  const StepTrace& replayed = candidate.replayed.trace;
  std::vector<Bias> bias(replayed.slots.size(), Bias::none);
  for (size_t s = 0; s < bias.size(); ++s)
    if (auto found = candidate.choices.bias.find(candidate.replayed.original_slot[s]);
        found != candidate.choices.bias.end())
      bias[s] = found->second;
  std::vector<bool> early(replayed.slots.size(), false);
  if (!candidate.choices.early.empty())
    for (size_t s = 0; s < early.size(); ++s)
      early[s] = candidate.choices.early[static_cast<size_t>(candidate.replayed.original_slot[s])];

  // Who leaves when, were copies instant …
  const Simulated plan = simulate(replayed, {.budget_bytes = inputs.budget_bytes - inputs.slack_bytes,
                                             .bias = &bias,
                                             .fetch_streamed = candidate.choices.fetch_streamed});
  candidate.outcome.feasible = plan.feasible;
  if (!plan.feasible) return candidate;
  Actions& actions = candidate.actions;
  actions.page_outs_after.resize(replayed.operators.size());
  actions.releases_after.resize(replayed.operators.size());
  for (const Leave& leave : plan.leaves) {
    if (leave.copied)
      actions.page_outs_after[static_cast<size_t>(page_out_trigger(replayed, leave))].push_back(leave.slot);
    if (leave.at > 0) actions.releases_after[static_cast<size_t>(leave.at) - 1].push_back(leave.slot);
  }
  actions.page_ins = PageInPlacer(replayed, inputs, plan, early).place();
  // … and what comes of it when they are not.
  candidate.leaves = plan.leaves;
  candidate.outcome =
      simulate(replayed, {.budget_bytes = inputs.budget_bytes, .rates = &inputs.rates, .actions = &actions});
  return candidate;
}

/// Improves one candidate step by step while simulations are left.
class Search {
 public:
  Search(const StepTrace& trace, const ScheduleInputs& inputs, double bound)
      : trace_(trace), inputs_(inputs), good_enough_(bound * 1.001), left_(inputs.candidates) {}

  /// Not feasible when even on demand the trace does not fit.
  Candidate run() {
    best_ = evaluate(trace_, inputs_, {});
    if (!best_.outcome.feasible && inputs_.slack_bytes > 0) {
      inputs_.slack_bytes = 0;
      best_ = evaluate(trace_, inputs_, {});
    }
    if (!best_.outcome.feasible) return std::move(best_);
    if (std::any_of(trace_.operators.begin(), trace_.operators.end(), [](auto& op) { return !op.streamed.empty(); }))
      attempt({.replays = {}, .bias = {}, .early = {}, .fetch_streamed = true});
    attempt({.replays = {},
             .bias = {},
             .early = std::vector<bool>(trace_.slots.size(), true),
             .fetch_streamed = best_.choices.fetch_streamed});
    for (bool improved = true; improved && !done();) {
      improved = false;
      if (inputs_.replay) improved |= try_replays();
      improved |= try_biases();
    }
    while (!done() && !slots_.empty()) perturb();
    return std::move(best_);
  }

 private:
  bool done() const { return left_ <= 0 || (best_.outcome.feasible && best_.outcome.seconds <= good_enough_); }

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

  /// Every gap that a replay can fill, those that the best candidate fills by copies first, then by what they gain.
  bool try_replays() {
    if (gaps_.empty()) find_gaps();
    std::vector<std::tuple<bool, double, const Replay*>> ordered;
    for (const auto& [gain, replay] : gaps_) {
      const bool leaves = std::any_of(best_.leaves.begin(), best_.leaves.end(), [&, r = &replay](const Leave& leave) {
        return best_.replayed.original_slot[static_cast<size_t>(leave.slot)] == r->slot;
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
    // A replay can run while copies are waited for: some operators before its use.
    for (size_t r = 0; r < best_.choices.replays.size(); ++r)
      for (int32_t before = best_.choices.replays[r].before - 1;
           r < best_.choices.replays.size() && before > best_.choices.replays[r].discard_after + 1; --before) {
        Choices choices = best_.choices;
        Replay earlier = choices.replays[r];
        earlier.before = before;
        choices.replays.erase(choices.replays.begin() + static_cast<std::ptrdiff_t>(r));
        if (!compatible(trace_, earlier, choices.replays)) break;
        choices.replays.insert(choices.replays.begin() + static_cast<std::ptrdiff_t>(r), std::move(earlier));
        if (!attempt(std::move(choices))) break;
        improved = true;
      }
    return improved;
  }

  /// Several choices at once, at random, for what no single one improves. The sequence is the same in every run.
  void perturb() {
    Choices choices = best_.choices;
    auto pick = [&](size_t count) { return static_cast<size_t>(random_() % count); };
    for (size_t n = 1 + pick(3); n > 0; --n) {
      const int32_t slot = slots_[pick(slots_.size())];
      switch (pick(gaps_.empty() ? 2 : 3)) {
        case 0:
          choices.bias[slot] = static_cast<Bias>(pick(3));
          break;
        case 1:
          choices.early.resize(trace_.slots.size(), false);
          choices.early[static_cast<size_t>(slot)].flip();
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
    for (int32_t s = 0; s < static_cast<int32_t>(trace_.slots.size()); ++s) {
      const Slot& slot = trace_.slots[static_cast<size_t>(s)];
      for (size_t u = 1; u < slot.uses.size(); ++u) {
        if (slot.uses[u] - slot.uses[u - 1] < 2) continue;
        Replay replay = replay_before(trace_, s, slot.uses[u]);
        if (replay.operators.empty()) continue;
        const auto bytes = static_cast<double>(slot.bytes);
        double gain = bytes / inputs_.rates.in_bytes_per_second + bytes / inputs_.rates.out_bytes_per_second;
        for (int32_t i : replay.operators) gain -= trace_.operators[static_cast<size_t>(i)].seconds;
        gaps_.emplace_back(gain, std::move(replay));
      }
    }
  }

  /// Each slot that is not used for a while may be worth keeping, or sending away instead of another; those that leave
  /// now first, then the largest.
  bool try_biases() {
    std::vector<std::tuple<bool, int64_t, int32_t>> slots;
    for (int32_t s = 0; s < static_cast<int32_t>(trace_.slots.size()); ++s) {
      const Slot& slot = trace_.slots[static_cast<size_t>(s)];
      const bool leaves = std::any_of(best_.leaves.begin(), best_.leaves.end(), [&](const Leave& leave) {
        return best_.replayed.original_slot[static_cast<size_t>(leave.slot)] == s;
      });
      const bool gap = std::adjacent_find(slot.uses.begin(), slot.uses.end(),
                                          [](int32_t a, int32_t b) { return b - a > 1; }) != slot.uses.end();
      if (leaves || gap || best_.choices.bias.count(s)) slots.emplace_back(leaves, slot.bytes, s);
    }
    std::sort(slots.rbegin(), slots.rend());
    slots_.clear();
    for (auto& [leaves, bytes, slot] : slots) slots_.push_back(slot);
    bool improved = false;
    for (auto& [leaves, bytes, slot] : slots)
      for (Bias bias : {Bias::stays, Bias::goes, Bias::none}) {
        Choices choices = best_.choices;
        auto now = choices.bias.find(slot);
        if ((now == choices.bias.end() ? Bias::none : now->second) == bias) continue;
        if (bias == Bias::none)
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
  std::vector<int32_t> slots_;                   // worth a bias
  std::minstd_rand random_{1};
};

/// From the candidate's trace, in which replays are operators, back to the trace as it was recorded.
Schedule translate(const StepTrace& trace, Candidate candidate) {
  Schedule schedule;
  const std::vector<int32_t>& original = candidate.replayed.original_operator;
  auto slot_of = [&](int32_t s) { return candidate.replayed.original_slot[static_cast<size_t>(s)]; };
  // After a replay means after the operator before it: the replay and the one that needs it run as one.
  std::vector<int32_t> after(original.size() + 1, -1);
  for (size_t i = 0; i < original.size(); ++i) after[i + 1] = original[i] >= 0 ? original[i] : after[i];
  schedule.actions.page_outs_after.resize(trace.operators.size());
  schedule.actions.releases_after.resize(trace.operators.size());
  schedule.held.resize(trace.operators.size());
  for (size_t i = 0; i < original.size(); ++i) {
    // What a replay made can be copied out once its user has run.
    size_t at = i;
    while (original[at] < 0) ++at;
    const auto to = static_cast<size_t>(original[at]);
    for (int32_t s : candidate.actions.page_outs_after[i]) schedule.actions.page_outs_after[to].push_back(slot_of(s));
    if (after[i + 1] >= 0)
      for (int32_t s : candidate.actions.releases_after[i])
        schedule.actions.releases_after[static_cast<size_t>(after[i + 1])].push_back(slot_of(s));
    schedule.held[to] = std::max(schedule.held[to], candidate.outcome.held[i]);
  }
  for (const Actions::PageIn& in : candidate.actions.page_ins) {
    const auto count = static_cast<int32_t>(original.size());
    auto use = static_cast<size_t>(in.use % count);
    while (original[use] < 0) ++use;
    const int32_t needed = original[use] + (in.use >= count ? static_cast<int32_t>(trace.operators.size()) : 0);
    const int32_t trigger = after[static_cast<size_t>(in.trigger + 1)];
    schedule.actions.page_ins.push_back({slot_of(in.slot), std::min(trigger, needed - 1), needed});
  }
  schedule.replays = std::move(candidate.choices.replays);
  schedule.bytes_out = candidate.outcome.bytes_out;
  schedule.bytes_in = candidate.outcome.bytes_in;
  schedule.predicted_seconds = candidate.outcome.seconds;
  schedule.exposed_seconds = candidate.outcome.exposed_seconds;
  return schedule;
}

}  // namespace

Schedule make_schedule(const StepTrace& trace, const ScheduleInputs& given) {
  ScheduleInputs inputs = given;
  // What fits as it is needs no slack: nothing leaves, and were it a little more, demand would see to it.
  if (trace.unconstrained_peak_bytes() <= inputs.budget_bytes) inputs.slack_bytes = 0;
  const double bound = bound_seconds(trace, inputs.budget_bytes, inputs.rates);
  Candidate best = Search(trace, inputs, bound).run();
  Schedule schedule;
  if (best.outcome.feasible) {
    schedule = translate(trace, std::move(best));
  } else {  // left to demand, which will say what does not fit
    schedule.actions.page_outs_after.resize(trace.operators.size());
    schedule.actions.releases_after.resize(trace.operators.size());
  }
  schedule.bound_seconds = bound;
  schedule.predicted_peak_bytes = std::min(inputs.budget_bytes, trace.unconstrained_peak_bytes());
  return schedule;
}

}  // namespace spillway
