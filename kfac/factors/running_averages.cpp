#include "kfac/factors/running_averages.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "kfac/factors/packed_triangles.h"

namespace spillway::kfac {
namespace {

// Updates of one shape, type and start, whose operators count once.
struct Peers {
  std::vector<AverageUpdate> updates;
  at::Tensor fresh;  // their new triangles, or whole matrices where 16 bits are kept, one behind the other

  int64_t size() const { return std::ssize(updates); }
  int64_t count() const { return updates.front().fresh.size(0); }
  bool are_rounded() const { return updates.front().running.diagonal.defined(); }
  bool accept(const AverageUpdate& update) const {
    const AverageUpdate& own = updates.front();
    return own.fresh.sizes() == update.fresh.sizes() && own.fresh.scalar_type() == update.fresh.scalar_type() &&
           own.running.entries.scalar_type() == update.running.entries.scalar_type() && own.start == update.start;
  }
};

std::vector<Peers> peers_among(const std::vector<AverageUpdate>& updates) {
  std::vector<Peers> all;
  for (const AverageUpdate& update : updates) {
    const auto found = std::ranges::find_if(all, [&](const Peers& peers) { return peers.accept(update); });
    if (found == all.end())
      all.push_back({.updates = {update}, .fresh = {}});
    else
      found->updates.push_back(update);
  }
  return all;
}

at::Tensor traces_of_averages(const Peers& peers) {
  std::vector<StoredTriangle> all;
  for (const AverageUpdate& update : peers.updates) all.push_back(update.running);
  return traces(all).view({peers.size(), peers.count()}).sum(1);
}

// Sets `fresh`, and returns the traces of the new factors.
at::Tensor join_fresh(Peers& peers) {
  std::vector<at::Tensor> all;
  for (const AverageUpdate& update : peers.updates) all.push_back(update.fresh);
  const auto matrices = all.size() == 1 ? all.front() : at::cat(all);
  if (peers.are_rounded()) {
    peers.fresh = matrices;
  } else {
    const auto sizes = peers.updates.front().running.entries.sizes();
    peers.fresh = at::empty({matrices.size(0), sizes[1], sizes[2]}, peers.updates.front().running.entries.options());
    pack_triangles({matrices}, peers.fresh.flatten());
  }
  return matrices.diagonal(0, -2, -1).unflatten(0, {peers.size(), peers.count()}).sum({1, 2});
}

// Moves each average by its step towards its new factor, after adding its `start` where it starts; both [members].
void move(const Peers& peers, const at::Tensor& steps, const at::Tensor& starts) {
  peers.fresh.nan_to_num_(0, 0, 0);
  for (int64_t k = 0; k < peers.size(); ++k) {
    const AverageUpdate& update = peers.updates[static_cast<size_t>(k)];
    const auto running = peers.are_rounded() ? update.running.load() : update.running.entries;
    if (update.start > 0) {
      const auto diagonals = peers.are_rounded() ? std::vector{running.diagonal(0, -2, -1)} : packed_diagonals(running);
      for (const auto& diagonal : diagonals) diagonal.add_(starts[k], update.start);
    }
    running.lerp_(peers.fresh.narrow(0, k * peers.count(), peers.count()), steps[k].to(running.scalar_type()));
    if (peers.are_rounded()) update.running.store(running);
  }
}

}  // namespace

void update_running_averages(const std::vector<AverageUpdate>& updates, double decay, const at::Tensor& dropped) {
  if (updates.empty()) return;
  std::vector<Peers> all = peers_among(updates);
  std::vector<at::Tensor> fresh_traces, traces;
  for (Peers& peers : all) {
    fresh_traces.push_back(join_fresh(peers));
    traces.push_back(traces_of_averages(peers));
  }
  // No entry of a Gram matrix is larger than its largest diagonal entry, so the trace tells whether all are finite.
  const auto fresh_trace = at::cat(fresh_traces), finite = at::isfinite(fresh_trace);
  dropped.add_(finite.logical_not().sum());
  const auto usable = finite.logical_and(fresh_trace.gt(0));
  const auto started = at::cat(traces).gt(0), starts = started.logical_not().logical_and(usable);
  const auto number = [&](double value) { return at::full({}, value, fresh_trace.options()); };
  const auto later = number(1 - decay) * usable, first = at::where(starts, number(1), later);
  int64_t begin = 0;
  for (const Peers& peers : all) {
    const auto& steps = peers.updates.front().start > 0 ? later : first;
    move(peers, steps.narrow(0, begin, peers.size()), starts.narrow(0, begin, peers.size()));
    begin += peers.size();
  }
}

}  // namespace spillway::kfac
