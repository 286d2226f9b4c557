#include "kfac/plan/assignment.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "kfac/plan/place_factors.h"

namespace spillway::kfac {
namespace {

// Cuts the ranks into `count` contiguous blocks. In each block, the worker has the same place as `owner` has in its own
// block.
void appoint_workers(Assignment& layer, int64_t owner, int64_t count, int64_t world) {
  auto start = [&](int64_t block) { return block * world / count; };
  int64_t own_block = 0;
  while (start(own_block + 1) <= owner) ++own_block;
  const int64_t column = owner - start(own_block);
  layer.worker_of.resize(world);
  for (int64_t block = 0; block < count; ++block) {
    const int64_t size = start(block + 1) - start(block);
    const int64_t worker = start(block) + column % size;
    layer.workers.push_back(worker);
    for (int64_t rank = start(block); rank < start(block + 1); ++rank) layer.worker_of[rank] = worker;
  }
}

FactorScope owner_of(Strategy strategy) {
  if (strategy == Strategy::dp) return FactorScope::own_batch;
  return strategy == Strategy::owner_reduce ? FactorScope::owner : FactorScope::everywhere;
}

// The distance that f·W may have from a whole number. 0.33 of 3, 0.17 of 6 and 0.09 of 11 ranks mean a third, a sixth,
// an eleventh.
constexpr double kRankTolerance = 0.05;

int64_t ranks_in(double share, int64_t world) {
  const double ranks = share * static_cast<double>(world);
  const int64_t whole = std::llround(ranks);
  if (whole >= 1 && whole <= world && std::abs(ranks - static_cast<double>(whole)) <= kRankTolerance) return whole;
  const auto below = std::clamp<int64_t>(static_cast<int64_t>(ranks), 1, world);
  const auto above = std::min(below + 1, world);
  const auto written = [&](int64_t k) {
    return str(k, "/", world, " = ", static_cast<double>(k) / static_cast<double>(world));
  };
  throw BadRequest(str("[kfac.assign] grad_worker_frac = ", share, " is no share of ", world,
                       " rank(s); the nearest are ", written(below), above == below ? "" : " and " + written(above)));
}

}  // namespace

std::vector<int64_t> Assignment::served_by(int64_t worker) const {
  std::vector<int64_t> ranks;
  for (size_t rank = 0; rank < worker_of.size(); ++rank)
    if (worker_of[rank] == worker) ranks.push_back(rank);
  return ranks;
}

int64_t gradient_workers(Strategy strategy, double grad_worker_frac, int64_t world) {
  if (strategy == Strategy::automatic) throw BadRequest("[kfac.assign] strategy auto has to be resolved first");
  if (strategy == Strategy::mem_opt || strategy == Strategy::dp) return 1;
  if (strategy == Strategy::comm_opt) return world;
  return ranks_in(grad_worker_frac, world);
}

std::vector<Assignment> assign(const std::vector<LayerShape>& layers, int64_t world, const KfacOptions& options) {
  if (world < 1) throw BadRequest(str("[kfac.assign] world = ", world, " is outside 1 and more ranks"));
  const auto& shares = options.layer_grad_worker_fracs;
  if (!shares.empty() && shares.size() != layers.size())
    throw BadRequest(str("[kfac.assign] layer_grad_worker_fracs has ", shares.size(), " entries; allowed: none, or ",
                         layers.size(), ", one a layer"));
  const auto owners = place_factors(decomposition_costs(layers, options.placement, options.decomposition_seconds),
                                    world, options.placement, options.strategy != Strategy::comm_opt);
  std::vector<Assignment> assignments(layers.size());
  for (size_t i = 0; i < layers.size(); ++i) {
    assignments[i].home = owner_of(options.strategy);
    assignments[i].owners = owners[i];
    const double share = shares.empty() ? options.grad_worker_frac : shares[i];
    appoint_workers(assignments[i], owners[i].front(), gradient_workers(options.strategy, share, world), world);
  }
  return assignments;
}

std::vector<Assignment> assign_stage(const std::vector<LayerShape>& layers, const std::vector<LayerShape>& model,
                                     const std::vector<int64_t>& numbers, int64_t world, const KfacOptions& options) {
  if (model.empty() || options.strategy != Strategy::dp || options.placement == Placement::measured)
    return assign(layers, world, options);
  KfacOptions of_model = options;
  of_model.layer_grad_worker_fracs.clear();  // they are of the stage's layers, and dp has one worker of each
  const auto all = assign(model, world, of_model);
  std::vector<Assignment> own;
  for (int64_t number : numbers) own.push_back(all.at(number));
  return own;
}

std::vector<FactorBytes> bytes_per_rank(const std::vector<LayerShape>& layers,
                                        const std::vector<Assignment>& assignments, int64_t element_bytes) {
  if (assignments.empty()) return {};
  std::vector<FactorBytes> all(assignments.front().world());
  for (size_t l = 0; l < layers.size(); ++l) {
    const auto bytes = [&](const std::vector<HeldTensor>& tensors) {
      return bytes_of(tensors, layers[l].storage, element_bytes);
    };
    const int64_t factors = bytes(factor_tensors(layers[l])), eigenbases = bytes(inverse_tensors(layers[l])),
                  scales = bytes(scale_tensors(layers[l]));
    for (int64_t rank = 0; rank < assignments[l].world(); ++rank) {
      auto& mine = all[rank];
      if (assignments[l].holds_factors(rank)) mine.factors += factors;
      if (assignments[l].stages_factors(rank)) mine.staged += factor_elements(layers[l]) * element_bytes;
      if (!assignments[l].is_worker(rank)) continue;
      mine.eigenbases += eigenbases;
      mine.scales += scales;
    }
  }
  return all;
}

}  // namespace spillway::kfac
