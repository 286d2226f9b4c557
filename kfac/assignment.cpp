#include "kfac/assignment.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"

namespace spillway::kfac {
namespace {

// Longest processing time first: the costliest job goes to the rank with the least so far.
std::vector<int64_t> place(const std::vector<double>& costs, int64_t world) {
  std::vector<size_t> order(costs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return costs[a] > costs[b]; });
  std::vector<double> load(static_cast<size_t>(world), 0);
  std::vector<int64_t> rank_of(costs.size());
  for (size_t job : order) {
    auto least = std::min_element(load.begin(), load.end());
    *least += costs[job];
    rank_of[job] = least - load.begin();
  }
  return rank_of;
}

// `count` contiguous blocks of ranks; in each, the worker stands where `owner` stands in its own block.
void appoint_workers(Assignment& layer, int64_t owner, int64_t count, int64_t world) {
  auto start = [&](int64_t block) { return block * world / count; };
  int64_t own_block = 0;
  while (start(own_block + 1) <= owner) ++own_block;
  const int64_t column = owner - start(own_block);
  layer.worker_of.resize(static_cast<size_t>(world));
  for (int64_t block = 0; block < count; ++block) {
    const int64_t size = start(block + 1) - start(block);
    const int64_t worker = start(block) + column % size;
    layer.workers.push_back(worker);
    for (int64_t rank = start(block); rank < start(block + 1); ++rank)
      layer.worker_of[static_cast<size_t>(rank)] = worker;
  }
}

std::vector<std::vector<int64_t>> owners_of_factors(const std::vector<LayerShape>& layers, int64_t world,
                                                    bool colocate) {
  std::vector<double> costs;
  for (const auto& layer : layers) {
    if (colocate) costs.push_back(0);
    for (const auto& factor : layer.factors()) {
      if (!colocate) costs.push_back(0);
      costs.back() += decomposition_cost(layer, factor);
    }
  }
  const auto ranks = place(costs, world);
  std::vector<std::vector<int64_t>> owners;
  size_t job = 0;
  for (const auto& layer : layers) {
    auto& own = owners.emplace_back();
    for (size_t i = 0; i < layer.factors().size(); ++i) own.push_back(ranks[colocate ? job : job++]);
    if (colocate) ++job;
  }
  return owners;
}

}  // namespace

std::vector<int64_t> Assignment::served_by(int64_t worker) const {
  std::vector<int64_t> ranks;
  for (size_t rank = 0; rank < worker_of.size(); ++rank)
    if (worker_of[rank] == worker) ranks.push_back(static_cast<int64_t>(rank));
  return ranks;
}

int64_t gradient_workers(Strategy strategy, double grad_worker_frac, int64_t world) {
  if (strategy == Strategy::mem_opt) return 1;
  if (strategy == Strategy::comm_opt) return world;
  return std::clamp<int64_t>(std::llround(grad_worker_frac * static_cast<double>(world)), 1, world);
}

std::vector<Assignment> assign(const std::vector<LayerShape>& layers, int64_t world, Strategy strategy,
                               double grad_worker_frac) {
  if (world < 1) throw BadRequest(str("[kfac.assign] world = ", world, " is outside 1 and more ranks"));
  const int64_t count = gradient_workers(strategy, grad_worker_frac, world);
  std::vector<Assignment> assignments;
  for (auto& owners : owners_of_factors(layers, world, strategy != Strategy::comm_opt)) {
    auto& layer = assignments.emplace_back();
    appoint_workers(layer, owners.front(), count, world);
    layer.owners = std::move(owners);
  }
  return assignments;
}

std::vector<FactorBytes> bytes_per_rank(const std::vector<LayerShape>& layers,
                                        const std::vector<Assignment>& assignments, int64_t element_bytes) {
  if (assignments.empty()) return {};
  std::vector<FactorBytes> bytes(assignments.front().worker_of.size());
  for (size_t l = 0; l < layers.size(); ++l) {
    for (auto& rank : bytes) {
      rank.factors += factor_elements(layers[l]) * element_bytes;
      rank.staged += factor_elements(layers[l]) * element_bytes;
    }
    for (int64_t worker : assignments[l].workers)
      bytes[static_cast<size_t>(worker)].eigenbases += eigenbasis_elements(layers[l]) * element_bytes;
  }
  return bytes;
}

std::vector<FactorTraffic> traffic_per_rank(const std::vector<LayerShape>& layers,
                                            const std::vector<Assignment>& assignments, int64_t element_bytes) {
  if (assignments.empty()) return {};
  const auto world = static_cast<int64_t>(assignments.front().worker_of.size());
  std::vector<FactorTraffic> traffic(static_cast<size_t>(world));
  for (size_t l = 0; l < layers.size(); ++l) {
    const auto factors = layers[l].factors();
    for (int64_t rank = 0; rank < world; ++rank) {
      auto& mine = traffic[static_cast<size_t>(rank)];
      if (world > 1) mine.factors += factor_elements(layers[l]) * element_bytes;
      if (!assignments[l].is_worker(rank)) mine.gradients += layers[l].gradient_elements() * element_bytes;
      for (const auto& tensor : inverse_tensors(layers[l]))
        if (assignments[l].is_worker(rank) && assignments[l].owners[tensor.factor] != rank)
          mine.eigenbases += tensor.elements() * element_bytes;
      // The owner of G forms the reciprocal from the values of every factor.
      if (layers[l].inverse.precompute_outer && assignments[l].owners.back() == rank)
        for (size_t f = 0; f < factors.size(); ++f)
          if (assignments[l].owners[f] != rank) mine.eigenbases += layers[l].groups * factors[f].side * element_bytes;
    }
  }
  return traffic;
}

}  // namespace spillway::kfac
