#include "pipe/bubble_filler.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "core/error.h"

namespace spillway::pipe {

BubbleFiller::BubbleFiller(const Horizon& horizon, std::span<const Extra> extras, std::vector<Instance> instances,
                           int steps, const FillOptions& options, double message)
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
  for (int x = 0; x < std::ssize(extras); ++x)
    made_ready_by_[{extras[x].rank, extras[x].taken_step, extras[x].ready}].push_back(x);
}

void BubbleFiller::run() {
  while (left_ > 0) {
    std::vector<size_t> order(ranks_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return std::pair(ranks_[a].free, a) < std::pair(ranks_[b].free, b); });
    if (std::none_of(order.begin(), order.end(), [&](size_t r) { return advance(ranks_[r], horizon_.of_rank(r)); }))
      throw BadRequest("[pipe] extras wait for each other for ever");
  }
}

double BubbleFiller::piece_seconds(const Instance& instance) const {
  return extra_of(instance).seconds / extra_of(instance).pieces;
}

/// Returns when the instance may begin; kNever while an extra before it is not done.
double BubbleFiller::ready_time(const Instance& instance) const {
  double time = instance.ready;
  const Extra& extra = extra_of(instance);
  for (int before : extra.after) {
    const bool elsewhere = extras_[before].rank != extra.rank;
    time = std::max(time, instances_[index_of(before, instance.cycle)].done + (elsewhere ? message_ : 0));
  }
  return time;
}

/// Runs a rank's next node, with pieces before it. Runs the pieces alone while the node needs one that has not been
/// run, or an extra that is not done. Returns false when nothing was run.
bool BubbleFiller::advance(Rank& rank, const std::vector<size_t>& nodes) {
  const size_t had_run = rank.items.size();
  if (rank.next == nodes.size()) return false;
  const Node& node = horizon_.node(nodes[rank.next]);
  double come = 0;
  for (size_t need : node.needs) {
    if (ends_[need] < 0) return false;
    come = std::max(come, ends_[need] + horizon_.message(horizon_.node(need), node.rank));
  }
  // An update may wait, because the rank's next forward is the first item that its end delays.
  const double latest = node.latest + late_, until = node.item.work == Work::update ? latest : come;
  while (Instance* chosen = choose(rank, until, latest)) run_piece(rank, *chosen, node.step);
  if (!run_due(rank, node)) return rank.items.size() > had_run;
  make_room(rank, node);
  run_node(rank, nodes[rank.next], std::max(rank.free, come));
  return true;
}

/// Returns the extra whose piece runs next. The piece begins before `until`, and leaves its margin before `latest`.
Instance* BubbleFiller::choose(const Rank& rank, double until, double latest) const {
  Instance* best = nullptr;
  std::tuple<double, int, double> least;
  for (Instance* instance : rank.pending) {
    const double seconds = piece_seconds(*instance), begin = std::max(rank.free, ready_time(*instance));
    if (begin >= until || begin + seconds * (1 + options_.margin) > latest) continue;
    const std::tuple<double, int, double> key{begin, instance->deadline, -seconds};
    if (!best || key < least) best = instance, least = key;
  }
  return best;
}

/// Returns the first extra with a deadline until `deadline` that the rank has not done; nullptr: there is none.
Instance* BubbleFiller::first_due(const Rank& rank, int deadline) const {
  const auto key = [&](const Instance& one) { return std::tuple(ready_time(one), one.deadline, one.extra); };
  Instance* first = nullptr;
  for (Instance* instance : rank.pending)
    if (instance->deadline <= deadline && (!first || key(*instance) < key(*first))) first = instance;
  return first;
}

/// Runs the extras whose deadline is this update. Returns false when one waits for an extra that is not done.
bool BubbleFiller::run_due(Rank& rank, const Node& node) {
  if (node.item.work != Work::update) return true;
  while (Instance* next = first_due(rank, node.step)) {
    if (ready_time(*next) == kNever) return false;
    run_piece(rank, *next, node.step);
  }
  return true;
}

/// Returns the extras that may begin when the node ends.
std::span<const int> BubbleFiller::made_ready_by(const Node& node) const {
  const auto found = made_ready_by_.find({node.rank, node.step % steps_, node.item});
  if (found == made_ready_by_.end() || node.step / steps_ >= cycles_) return {};
  return found->second;
}

/// Runs extras until those that the node makes ready can be held beside the others.
void BubbleFiller::make_room(Rank& rank, const Node& node) {
  int64_t bytes = 0;
  const std::span<const int> ready = made_ready_by(node);
  if (ready.empty()) return;
  for (int x : ready) bytes += extras_[x].held_bytes;
  while (rank.held > 0 && rank.held > options_.held_bytes_limit - bytes) {
    Instance* next = first_due(rank, kNoDeadline);
    if (!next || ready_time(*next) == kNever) return;
    run_piece(rank, *next, node.step);
  }
}

void BubbleFiller::run_piece(Rank& rank, Instance& instance, int step) {
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
  std::erase(rank.pending, &instance);
}

void BubbleFiller::run_node(Rank& rank, size_t index, double begin) {
  const Node& node = horizon_.node(index);
  late_ = std::max(late_, begin - node.latest);
  rank.free = ends_[index] = begin + node.seconds();
  rank.items.push_back({.item = node.item, .begin = begin, .end = rank.free});
  rank.step_of.push_back(node.step);
  ++rank.next;
  --left_;
  if (node.item.work == Work::update) step_ends_[node.step] = std::max(step_ends_[node.step], rank.free);
  make_ready(rank, node);
}

void BubbleFiller::make_ready(Rank& rank, const Node& node) {
  for (int x : made_ready_by(node)) {
    Instance& instance = instances_[index_of(x, node.step / steps_)];
    instance.ready = rank.free;
    rank.pending.push_back(&instance);
    rank.held += extras_[x].held_bytes;
  }
  rank.most_held = std::max(rank.most_held, rank.held);
}

}  // namespace spillway::pipe
