#include "pipe/horizon.h"

#include <algorithm>

#include "pipe/run_to_end.h"

namespace spillway::pipe {

Horizon::Horizon(const StepProgram& program, const Costs& costs, int steps, std::span<const Due> due)
    : costs_(costs), of_rank_(program.items.size()) {
  for (const Due& one : due)
    if (one.step < steps) due_[{one.rank, one.step}].push_back(one);
  for (int step = 0; step < steps; ++step) add(program, step);
  set_latest();
}

void Horizon::add(const StepProgram& program, int step) {
  std::map<Item, size_t> known;
  std::vector<size_t> next(of_rank_.size(), 0);
  ends_.push_back(0);
  const auto at_end = [&](int rank) { return next[rank] == program.items[rank].size(); };
  run_to_end(ranks(), at_end, [&](int rank) {
    if (!add(program, step, rank, next[rank], known)) return false;
    ++next[rank];
    return true;
  });
}

/// Adds a rank's item. Returns false when a node that it needs is not there yet.
bool Horizon::add(const StepProgram& program, int step, int rank, size_t place, std::map<Item, size_t>& known) {
  const Item& item = program.items[rank][place];
  Node node{.step = step, .rank = rank, .item = item};
  if (!of_rank_[rank].empty()) node.begin = nodes_[of_rank_[rank].back()].end;
  for (const Item& need : program.needs(item, rank)) {
    const auto found = known.find(need);
    if (found == known.end()) return false;
    node.needs.push_back(found->second);
    node.begin = std::max(node.begin, nodes_[found->second].end + message(nodes_[found->second], rank));
  }
  if (item.work == Work::update) node.lags = lags_of(step, rank);
  for (const Lag& lag : node.lags) node.begin = std::max(node.begin, nodes_[lag.node].end + lag.seconds);
  node.end = node.begin + seconds_of(item, costs_);
  if (item.work == Work::update)
    ends_[step] = std::max(ends_[step], node.end);
  else
    known[item] = nodes_.size();
  of_rank_[rank].push_back(nodes_.size());
  nodes_.push_back(std::move(node));
  return true;
}

/// Returns the lags of a rank's update: one for each node after which an extra may begin that is due before the update.
/// Its seconds are those of the due extras that may begin after this node or a later one. They include the nodes
/// between it and the update.
std::vector<Lag> Horizon::lags_of(int step, int rank) const {
  const auto due = due_.find({rank, step});
  if (due == due_.end()) return {};
  std::vector<Lag> lags;
  double seconds = 0;
  const std::vector<size_t>& nodes = of_rank_[rank];
  for (size_t i = nodes.size(), left = due->second.size(); i-- > 0 && left > 0;) {
    const Node& node = nodes_[nodes[i]];
    double made_ready = 0;
    for (const Due& one : due->second)
      if (one.taken_step == node.step && one.ready == node.item) made_ready += one.seconds, --left;
    seconds += made_ready;
    if (made_ready > 0) lags.push_back({nodes[i], seconds});
    seconds += node.seconds();
  }
  return lags;
}

void Horizon::set_latest() {
  std::vector<double> latest_end(nodes_.size(), kNever);
  std::vector<size_t> before(nodes_.size());  // the node of the same rank
  for (const auto& nodes : of_rank_)
    for (size_t i = 0; i < nodes.size(); ++i) before[nodes[i]] = i == 0 ? nodes[i] : nodes[i - 1];
  for (const auto& nodes : of_rank_)
    if (!nodes.empty()) latest_end[nodes.back()] = ends_.back();
  for (size_t n = nodes_.size(); n-- > 0;) {
    Node& node = nodes_[n];
    node.latest = latest_end[n] - node.seconds();
    if (before[n] != n) latest_end[before[n]] = std::min(latest_end[before[n]], node.latest);
    for (size_t need : node.needs)
      latest_end[need] = std::min(latest_end[need], node.latest - message(nodes_[need], node.rank));
    for (const Lag& lag : node.lags) latest_end[lag.node] = std::min(latest_end[lag.node], node.latest - lag.seconds);
  }
}

}  // namespace spillway::pipe
