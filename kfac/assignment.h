/// Who decomposes, who preconditions and who receives: every strategy as data. LibTorch-free.
/// Source: Pauloski et al., KAISA (SC'21), §3 and fig. 4.
#pragma once
#include <cstdint>
#include <vector>

#include "kfac/layer_shape.h"
#include "kfac/options.h"

namespace spillway::kfac {

/// One layer's part of the plan. Ranks count from 0.
struct Assignment {
  /// The rank that decomposes each factor, in the order of LayerShape::factors(); all equal unless comm_opt.
  std::vector<int64_t> owners;
  /// The ranks that hold the eigenbases and precondition; ascending, contains every owner.
  std::vector<int64_t> workers;
  /// For each rank, the worker whose preconditioned gradient it takes: itself for a worker. Workers serve disjoint,
  /// contiguous blocks of ranks whose sizes differ by one at most.
  std::vector<int64_t> worker_of;

  bool is_worker(int64_t rank) const { return worker_of[static_cast<size_t>(rank)] == rank; }
  /// `worker` and the ranks it serves, ascending: the members of its broadcast.
  std::vector<int64_t> served_by(int64_t worker) const;
};

/// max(1, round(f·world)) for hybrid, 1 for mem_opt, world for comm_opt.
int64_t gradient_workers(Strategy strategy, double grad_worker_frac, int64_t world);

/// One Assignment a layer. Owners: longest processing time first on Σ groups·side³ (a whole layer, or with comm_opt one
/// factor, goes to the rank with the least so far; ties to the earlier layer and the lower rank), so that the makespan
/// is at most 4/3 of the optimum (Graham 1969). With n workers the ranks form n contiguous blocks; the worker of a
/// block stands where the owner stands in its own, which for n | world is KAISA's grid. Throws BadRequest for world
/// < 1.
std::vector<Assignment> assign(const std::vector<LayerShape>& layers, int64_t world, Strategy strategy,
                               double grad_worker_frac);

/// Bytes of K-FAC state on one rank.
struct FactorBytes {
  int64_t factors = 0;     ///< running averages, always held
  int64_t eigenbases = 0;  ///< Q and v of the layers for which the rank is a gradient worker, always held
  int64_t staged = 0;      ///< a factor step's new factors, from the layer's backward to the end of step()
  int64_t held() const { return factors + eigenbases; }
  int64_t peak() const { return held() + staged; }
  bool operator==(const FactorBytes&) const = default;
};

/// F + f·E for every rank, exact to the byte: what Kfac's tensors occupy. `element_bytes` of the state's type.
std::vector<FactorBytes> bytes_per_rank(const std::vector<LayerShape>& layers,
                                        const std::vector<Assignment>& assignments, int64_t element_bytes = 4);

/// Bytes that enter one rank, by what carries them: what a plan weighs against FactorBytes.
struct FactorTraffic {
  int64_t factors = 0;     ///< averaged over all ranks, in each factor step
  int64_t eigenbases = 0;  ///< received from owners, in each decomposition
  int64_t gradients = 0;   ///< received from a worker, in every step
  bool operator==(const FactorTraffic&) const = default;
};
std::vector<FactorTraffic> traffic_per_rank(const std::vector<LayerShape>& layers,
                                            const std::vector<Assignment>& assignments, int64_t element_bytes = 4);

}  // namespace spillway::kfac
