#include "pipe/fill.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "core/error.h"
#include "pipe/bubble_filler.h"
#include "pipe/horizon.h"
#include "pipe/run_to_end.h"

namespace spillway::pipe {
namespace {

/// Cycles that are filled. The second last one is the result: the first ones start with empty ranks, and nothing
/// follows the last one.
constexpr int kCycles = 4;
/// Steps after the one in which the last extra is done, where a cycle has as many as it needs.
constexpr int kTail = 2;
constexpr int kMaxSteps = 1024;

[[noreturn]] void refuse(size_t extra, const std::string& what) {
  throw BadRequest(str("[pipe] extra ", extra, " ", what));
}

/// Returns the extras of all cycles, whose deadlines are steps of a cycle, or kNoDeadline.
std::vector<Instance> instances_of(std::span<const Extra> extras, std::span<const int> deadlines, int steps,
                                   int cycles) {
  std::vector<Instance> instances;
  for (int cycle = 0; cycle < cycles; ++cycle)
    for (int x = 0; x < std::ssize(extras); ++x)
      instances.push_back({.extra = x,
                           .cycle = cycle,
                           .taken = extras[x].taken_step + cycle * steps,
                           .deadline = deadlines[x] == kNoDeadline ? kNoDeadline : deadlines[x] + cycle * steps});
  return instances;
}

/// Returns the extras with a deadline.
std::vector<Due> due_of(std::span<const Extra> extras, std::span<const Instance> instances) {
  std::vector<Due> due;
  for (const Instance& instance : instances) {
    const Extra& extra = extras[instance.extra];
    if (instance.deadline != kNoDeadline)
      due.push_back({extra.rank, instance.taken, extra.ready, instance.deadline, extra.seconds});
  }
  return due;
}

/// Returns the first step in which an extra can be done before the update.
int first_step(const Extra& extra) {
  return extra.taken_step + (extra.ready.work == Work::update ? 1 : 0);
}

/// Returns the extras in an order in which each comes after those that it waits for. Throws where there is none.
std::vector<int> in_order(std::span<const Extra> extras) {
  std::vector<int> order;
  std::vector<bool> placed(extras.size(), false);
  const auto at_end = [&](int x) -> bool { return placed[x]; };
  const auto in_circle = run_to_end(std::ssize(extras), at_end, [&](int x) {
    const std::vector<int>& after = extras[x].after;
    if (!std::all_of(after.begin(), after.end(), at_end)) return false;
    placed[x] = true;
    order.push_back(x);
    return true;
  });
  if (in_circle) refuse(*in_circle, "and others wait for each other for ever");
  return order;
}

void check(const StepProgram& program, std::span<const Extra> extras, const FillOptions& options) {
  if (options.steps < 0) throw BadRequest(str("[pipe] a cycle of ", options.steps, " steps; allowed: 0 or more"));
  const int64_t ranks = std::ssize(program.items);
  for (size_t x = 0; x < extras.size(); ++x) {
    const Extra& extra = extras[x];
    if (extra.rank < 0 || extra.rank >= ranks) refuse(x, str("is of rank ", extra.rank, " of ", ranks));
    const std::vector<Item>& items = program.items[extra.rank];
    if (std::find(items.begin(), items.end(), extra.ready) == items.end())
      refuse(x, str("waits for the ", describe(extra.ready), ", which its rank does not do"));
    if (!std::isfinite(extra.seconds) || extra.seconds < 0 || extra.pieces < 1)
      refuse(x, str("takes ", extra.seconds, " seconds in ", extra.pieces, " pieces"));
    const int steps = std::max(1, options.steps);
    if (extra.taken_step < 0 || extra.taken_step >= steps)
      refuse(x, str("is taken in step ", extra.taken_step, " of ", steps));
    const int first = first_step(extra);
    if (extra.serves_step != -1 && (extra.serves_step < first || extra.serves_step >= 2 * steps))
      refuse(x, str("serves step ", extra.serves_step, "; allowed: ", first, " to ", 2 * steps - 1, ", and -1"));
    if (extra.serves_step != -1 && options.steps == 0) refuse(x, "has a deadline in a cycle of any length");
    for (int before : extra.after)
      if (before < 0 || before >= std::ssize(extras))
        refuse(x, str("comes after extra ", before, ", which is not there"));
  }
  (void)in_order(extras);
}

/// Takes the steps from `first` on as a cycle.
Filled cycle_of(const BubbleFiller& filler, int first, int steps) {
  Filled filled;
  double start = kNever;
  for (const BubbleFiller::Rank& rank : filler.ranks()) {
    auto& of_steps = filled.items.emplace_back(steps);
    double busy = 0, extra = 0;
    for (size_t i = 0; i < rank.items.size(); ++i) {
      const int step = rank.step_of[i] - first;
      if (step < 0 || step >= steps) continue;
      const FilledItem& item = rank.items[i];
      of_steps[step].push_back(item);
      (item.extra < 0 ? busy : extra) += item.end - item.begin;
      start = std::min(start, item.begin);
    }
    filled.busy.push_back(busy);
    filled.filled.push_back(extra);
    filled.held_bytes.push_back(rank.most_held);
  }
  for (auto& of_rank : filled.items)
    for (auto& of_step : of_rank)
      for (FilledItem& item : of_step) item.begin -= start, item.end -= start;
  return filled;
}

bool has_each_piece_once(const Filled& filled, std::span<const Extra> extras) {
  std::set<std::pair<int, int>> seen;
  size_t pieces = 0, placed = 0;
  for (const Extra& extra : extras) pieces += extra.pieces;
  for (const auto& of_rank : filled.items)
    for (const auto& of_step : of_rank)
      for (const FilledItem& item : of_step)
        if (item.extra >= 0) ++placed, seen.emplace(item.extra, item.piece);
  return placed == pieces && seen.size() == pieces;
}

/// Returns the steps before whose updates the extras are done: at the latest when one that comes after them must be.
std::vector<int> deadlines_of(std::span<const Extra> extras) {
  std::vector<int> deadlines;
  for (const Extra& extra : extras) deadlines.push_back(extra.serves_step == -1 ? kNoDeadline : extra.serves_step);
  std::vector<int> last_first = in_order(extras);
  std::reverse(last_first.begin(), last_first.end());
  for (int x : last_first)
    for (int before : extras[x].after) deadlines[before] = std::min(deadlines[before], deadlines[x]);
  for (size_t x = 0; x < extras.size(); ++x)
    if (deadlines[x] < first_step(extras[x]))
      refuse(x, str("is taken in step ", extras[x].taken_step, ", and one that comes after it serves step ",
                    deadlines[x]));
  return deadlines;
}

/// Moves deadlines into the cycle, where they can be.
std::vector<int> within_the_cycle(std::vector<int> deadlines, std::span<const Extra> extras, int steps) {
  for (size_t x = 0; x < extras.size(); ++x)
    deadlines[x] = std::min(deadlines[x], std::max(first_step(extras[x]), steps - 1));
  return deadlines;
}

Filled fill_cycle(const StepProgram& program, std::span<const Extra> extras, const Costs& costs,
                  const FillOptions& options) {
  const int steps = options.steps, first = (kCycles - 2) * steps;
  const Horizon unfilled(program, costs, kCycles * steps);
  const auto seconds_of_cycle = [&](const auto& run) { return run.end_of(first + steps - 1) - run.end_of(first - 1); };
  const std::vector<int> own = deadlines_of(extras);
  for (const std::vector<int>& deadlines : {own, within_the_cycle(own, extras, steps)}) {
    std::vector<Instance> instances = instances_of(extras, deadlines, steps, kCycles);
    const Horizon horizon(program, costs, kCycles * steps, due_of(extras, instances));
    BubbleFiller filler(horizon, extras, std::move(instances), steps, options, costs.message);
    filler.run();
    Filled filled = cycle_of(filler, first, steps);
    filled.seconds = seconds_of_cycle(filler);
    filled.unfilled_seconds = seconds_of_cycle(unfilled);
    if (has_each_piece_once(filled, extras)) return filled;
  }
  throw BadRequest(str("[pipe] no cycle of ", steps, " steps has each extra once"));
}

/// Fills more and more steps, until all extras of step 0 are done before the last ones.
Filled fill_as_needed(const StepProgram& program, std::span<const Extra> extras, const Costs& costs,
                      const FillOptions& options) {
  const std::vector<int> none(extras.size(), kNoDeadline);
  for (int horizon_steps = 8; horizon_steps <= kMaxSteps; horizon_steps *= 2) {
    const Horizon horizon(program, costs, horizon_steps);
    BubbleFiller filler(horizon, extras, instances_of(extras, none, horizon_steps, /*cycles=*/1), horizon_steps,
                        options, costs.message);
    filler.run();
    int last = 0;
    for (const BubbleFiller::Rank& rank : filler.ranks())
      for (size_t i = 0; i < rank.items.size(); ++i)
        if (rank.items[i].extra >= 0) last = std::max(last, rank.step_of[i]);
    const bool all = std::all_of(filler.instances().begin(), filler.instances().end(),
                                 [](const Instance& instance) { return instance.done < kNever; });
    if (!all || last + kTail >= horizon_steps) continue;
    const int steps = last + 1;
    const double period = horizon.end_of(horizon_steps - 1) - horizon.end_of(horizon_steps - 2);
    Filled filled = cycle_of(filler, 0, steps);
    filled.unfilled_seconds = steps * period;
    filled.seconds = filled.unfilled_seconds + filler.end_of(last) - horizon.end_of(last);
    return filled;
  }
  throw BadRequest(str("[pipe] the waits of ", kMaxSteps, " steps have no room for all extras"));
}

}  // namespace

double Filled::utilization() const {
  const double work =
      std::accumulate(busy.begin(), busy.end(), 0.0) + std::accumulate(filled.begin(), filled.end(), 0.0);
  return seconds > 0 ? work / (seconds * static_cast<double>(busy.size())) : 0;
}

int Filled::steps_until_done(int rank, std::span<const Extra> extras) const {
  int most = 0;
  for (int step = 0; step < steps(); ++step)
    for (const FilledItem& item : items[rank][step])
      if (item.extra >= 0) most = std::max(most, step + item.age * steps() - extras[item.extra].taken_step + 1);
  return most;
}

Filled fill(const StepProgram& program, std::span<const Extra> extras, const Costs& costs, const FillOptions& options) {
  check(program, extras, options);
  return options.steps == 0 ? fill_as_needed(program, extras, costs, options)
                            : fill_cycle(program, extras, costs, options);
}

}  // namespace spillway::pipe
