#include "pipe/fill.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "pipe/horizon.h"

namespace spillway::pipe {
namespace {

constexpr int kNoDeadline = std::numeric_limits<int>::max();
/// Cycles that are filled. The second last one is the result: the first ones start with empty ranks, and nothing
/// follows the last one.
constexpr int kCycles = 4;
/// Steps after the one in which the last extra is done, where a cycle has as many as it needs.
constexpr int kTail = 2;
constexpr int kMaxSteps = 1024;

[[noreturn]] void refuse(size_t extra, const std::string& what) {
  throw BadRequest(str("[pipe] extra ", extra, " ", what));
}

/// An extra in one of the cycles. Steps are counted from the first cycle's start.
struct Instance {
  int extra = 0, cycle = 0;
  int taken = 0, deadline = kNoDeadline;
  int pieces_done = 0;
  double ready = kNever, done = kNever;
};

/// Returns the extras of all cycles, whose deadlines are steps of a cycle, or kNoDeadline.
std::vector<Instance> instances_of(std::span<const Extra> extras, std::span<const int> deadlines, int steps,
                                   int cycles) {
  std::vector<Instance> instances;
  for (int cycle = 0; cycle < cycles; ++cycle)
    for (size_t x = 0; x < extras.size(); ++x)
      instances.push_back({.extra = static_cast<int>(x),
                           .cycle = cycle,
                           .taken = extras[x].taken_step + cycle * steps,
                           .deadline = deadlines[x] == kNoDeadline ? kNoDeadline : deadlines[x] + cycle * steps});
  return instances;
}

/// Returns the work that must be done before an update.
std::vector<Due> due_of(std::span<const Extra> extras, std::span<const Instance> instances) {
  std::vector<Due> due;
  for (const Instance& instance : instances) {
    const Extra& extra = extras[instance.extra];
    if (instance.deadline != kNoDeadline)
      due.push_back({extra.rank, instance.taken, extra.ready, instance.deadline, extra.seconds});
  }
  return due;
}

/// Runs the ranks through the horizon and fills their waits.
class Filler {
 public:
  struct Rank {
    size_t next = 0;  ///< node
    double free = 0;
    int64_t held = 0, most_held = 0;
    std::vector<size_t> pending;  ///< instances whose item has ended
    std::vector<FilledItem> items;
    std::vector<int> step_of;  ///< by item
  };

  Filler(const Horizon& horizon, std::span<const Extra> extras, std::vector<Instance> instances, int steps,
         const FillOptions& options, double message)
      : horizon_(horizon),
        extras_(extras),
        steps_(steps),
        cycles_(instances.empty() ? 0 : instances.back().cycle + 1),
        options_(options),
        message_(message),
        ranks_(horizon.ranks()),
        left_(horizon.size()),
        ends_(horizon.size(), -1),
        instances_(std::move(instances)) {
    for (size_t x = 0; x < extras.size(); ++x)
      made_ready_by_[{extras[x].rank, extras[x].taken_step, extras[x].ready}].push_back(x);
  }

  void run() {
    while (left_ > 0) {
      std::vector<size_t> order(ranks_.size());
      std::iota(order.begin(), order.end(), size_t{0});
      std::sort(order.begin(), order.end(),
                [&](size_t a, size_t b) { return std::pair(ranks_[a].free, a) < std::pair(ranks_[b].free, b); });
      if (std::none_of(order.begin(), order.end(), [&](size_t r) { return advance(r); }))
        throw BadRequest("[pipe] extras wait for each other for ever");
    }
  }

  const std::vector<Rank>& ranks() const { return ranks_; }
  const std::vector<Instance>& instances() const { return instances_; }
  double end_of(int step) const { return step_ends_.at(step); }

 private:
  const Extra& extra_of(const Instance& instance) const { return extras_[instance.extra]; }
  double piece_seconds(const Instance& instance) const {
    return extra_of(instance).seconds / extra_of(instance).pieces;
  }

  /// Returns when the instance may begin; kNever while an extra before it is not done.
  double ready_time(const Instance& instance) const {
    double time = instance.ready;
    const Extra& extra = extra_of(instance);
    for (int before : extra.after) {
      const bool elsewhere = extras_[before].rank != extra.rank;
      time = std::max(time, instances_[index(before, instance.cycle)].done + (elsewhere ? message_ : 0));
    }
    return time;
  }
  size_t index(int extra, int cycle) const { return static_cast<size_t>(cycle) * extras_.size() + extra; }

  /// Runs the rank's next node, with extras before it, as far as what they need has been run. Returns false when it
  /// could run nothing.
  bool advance(size_t r) {
    Rank& rank = ranks_[r];
    const size_t had_run = rank.items.size();
    const std::vector<size_t>& nodes = horizon_.of_rank(r);
    if (rank.next == nodes.size()) return false;
    const Node& node = horizon_.node(nodes[rank.next]);
    double come = 0;
    for (size_t need : node.needs) {
      if (ends_[need] < 0) return false;
      come = std::max(come, ends_[need] + horizon_.message(horizon_.node(need), node.rank));
    }
    // An update may wait, because the rank's next forward is the first item that its end delays.
    const double latest = node.latest + late_, until = node.item.work == Work::update ? latest : come;
    while (const Instance* chosen = choose(rank, until, latest)) run_piece(rank, *chosen, node.step);
    if (!do_what_is_due(rank, node)) return rank.items.size() > had_run;
    make_room(rank, node);
    run_node(rank, nodes[rank.next], std::max(rank.free, come));
    return true;
  }

  /// Returns the extra that runs next. It begins before `until`, and leaves its margin before `latest`.
  const Instance* choose(const Rank& rank, double until, double latest) const {
    const Instance* best = nullptr;
    std::tuple<double, int, double> least;
    for (size_t i : rank.pending) {
      const Instance& instance = instances_[i];
      const double seconds = piece_seconds(instance), begin = std::max(rank.free, ready_time(instance));
      if (begin >= until || begin + seconds * (1 + options_.margin) > latest) continue;
      const std::tuple<double, int, double> key{begin, instance.deadline, -seconds};
      if (!best || key < least) best = &instance, least = key;
    }
    return best;
  }

  /// Returns the extra with the earliest deadline, until `deadline`, that the rank has not done; nullptr: there is
  /// none.
  const Instance* due(const Rank& rank, int deadline) const {
    const Instance* first = nullptr;
    for (size_t i : rank.pending) {
      const Instance& instance = instances_[i];
      if (instance.deadline > deadline) continue;
      const auto key = [&](const Instance& one) { return std::tuple(ready_time(one), one.deadline, one.extra); };
      if (!first || key(instance) < key(*first)) first = &instance;
    }
    return first;
  }

  /// Runs the extras whose deadline is this update. Returns false when one waits for an extra that is not done.
  bool do_what_is_due(Rank& rank, const Node& node) {
    if (node.item.work != Work::update) return true;
    while (const Instance* next = due(rank, node.step)) {
      if (ready_time(*next) == kNever) return false;
      run_piece(rank, *next, node.step);
    }
    return true;
  }

  /// Runs extras until those that the node makes ready can be held beside the others.
  void make_room(Rank& rank, const Node& node) {
    const auto ready = made_ready_by_.find({node.rank, node.step % steps_, node.item});
    if (ready == made_ready_by_.end() || node.step / steps_ >= cycles_) return;
    int64_t bytes = 0;
    for (size_t x : ready->second) bytes += extras_[x].held_bytes;
    while (rank.held > 0 && rank.held > options_.held_bytes_limit - bytes) {
      const Instance* next = due(rank, kNoDeadline);
      if (!next || ready_time(*next) == kNever) return;
      run_piece(rank, *next, node.step);
    }
  }

  void run_piece(Rank& rank, const Instance& chosen, int step) {
    Instance& instance = instances_[&chosen - instances_.data()];
    const double begin = std::max(rank.free, ready_time(instance));
    rank.free = begin + piece_seconds(instance);
    rank.items.push_back({.extra = instance.extra,
                          .piece = instance.pieces_done,
                          .age = step / steps_ - instance.cycle,
                          .begin = begin,
                          .end = rank.free});
    rank.step_of.push_back(step);
    if (++instance.pieces_done < extra_of(instance).pieces) return;
    instance.done = rank.free;
    rank.held -= extra_of(instance).held_bytes;
    std::erase(rank.pending, static_cast<size_t>(&instance - instances_.data()));
  }

  void run_node(Rank& rank, size_t index_of_node, double begin) {
    const Node& node = horizon_.node(index_of_node);
    late_ = std::max(late_, begin - node.latest);
    rank.free = ends_[index_of_node] = begin + node.seconds();
    rank.items.push_back({.item = node.item, .begin = begin, .end = rank.free});
    rank.step_of.push_back(node.step);
    ++rank.next;
    --left_;
    if (node.item.work == Work::update) step_ends_[node.step] = std::max(step_ends_[node.step], rank.free);
    const int cycle = node.step / steps_;
    const auto ready = made_ready_by_.find({node.rank, node.step % steps_, node.item});
    if (ready == made_ready_by_.end() || cycle >= cycles_) return;
    for (size_t x : ready->second) {
      const size_t i = index(static_cast<int>(x), cycle);
      instances_[i].ready = rank.free;
      rank.pending.push_back(i);
      rank.held += extras_[x].held_bytes;
    }
    rank.most_held = std::max(rank.most_held, rank.held);
  }

  const Horizon& horizon_;
  const std::span<const Extra> extras_;
  const int steps_, cycles_;
  const FillOptions& options_;
  const double message_;
  std::vector<Rank> ranks_;
  size_t left_;               // nodes that have not run
  std::vector<double> ends_;  // by node; negative: it has not run
  std::vector<Instance> instances_;
  std::map<std::tuple<int, int, Item>, std::vector<size_t>> made_ready_by_;  // by rank, step of the cycle and item
  std::map<int, double> step_ends_;
  double late_ = 0;  // seconds by which items are later than the latest time that delays nothing
};

/// Returns the first step in which an extra can be done before the update.
int first_step(const Extra& extra) {
  return extra.taken_step + (extra.ready.work == Work::update ? 1 : 0);
}

/// Throws where extras come after each other in a circle.
void check_that_they_end(std::span<const Extra> extras) {
  std::vector<bool> ends(extras.size(), false);
  const auto can_end = [&](size_t x) {
    return std::all_of(extras[x].after.begin(), extras[x].after.end(), [&](int before) { return ends[before]; });
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t x = 0; x < extras.size(); ++x)
      if (!ends[x] && can_end(x)) ends[x] = moved = true;
  }
  for (size_t x = 0; x < extras.size(); ++x)
    if (!ends[x]) refuse(x, "and others wait for each other for ever");
}

void check(const StepProgram& program, std::span<const Extra> extras, const FillOptions& options) {
  if (options.steps < 0) throw BadRequest(str("[pipe] a cycle of ", options.steps, " steps; allowed: 0 or more"));
  const int ranks = static_cast<int>(program.items.size());
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
  check_that_they_end(extras);
}

/// Takes the steps from `first` on as a cycle.
Filled cycle_of(const Filler& filler, int first, int steps) {
  Filled filled;
  double start = kNever;
  for (const Filler::Rank& rank : filler.ranks()) {
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
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t x = 0; x < extras.size(); ++x)
      for (int before : extras[x].after)
        if (deadlines[before] > deadlines[x]) deadlines[before] = deadlines[x], moved = true;
  }
  for (size_t x = 0; x < extras.size(); ++x)
    if (deadlines[x] < first_step(extras[x]))
      refuse(x, str("is taken in step ", extras[x].taken_step, ", and one that comes after it serves step ",
                    deadlines[x]));
  return deadlines;
}

/// Returns deadlines within the cycle, where they can be.
std::vector<int> within_the_cycle(std::span<const Extra> extras, int steps) {
  std::vector<int> deadlines = deadlines_of(extras);
  for (size_t x = 0; x < extras.size(); ++x)
    deadlines[x] = std::min(deadlines[x], std::max(first_step(extras[x]), steps - 1));
  return deadlines;
}

Filled fill_cycle(const StepProgram& program, std::span<const Extra> extras, const Costs& costs,
                  const FillOptions& options) {
  const int steps = options.steps, first = (kCycles - 2) * steps;
  const Horizon unfilled(program, costs, kCycles * steps);
  const auto seconds_of_cycle = [&](const auto& run) { return run.end_of(first + steps - 1) - run.end_of(first - 1); };
  for (const auto& deadlines : {deadlines_of(extras), within_the_cycle(extras, steps)}) {
    std::vector<Instance> instances = instances_of(extras, deadlines, steps, kCycles);
    const Horizon horizon(program, costs, kCycles * steps, due_of(extras, instances));
    Filler filler(horizon, extras, std::move(instances), steps, options, costs.message);
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
    Filler filler(horizon, extras, instances_of(extras, none, horizon_steps, /*cycles=*/1), horizon_steps, options,
                  costs.message);
    filler.run();
    int last = 0;
    for (const Filler::Rank& rank : filler.ranks())
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

int Filled::refresh_steps(int rank, std::span<const Extra> extras) const {
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
