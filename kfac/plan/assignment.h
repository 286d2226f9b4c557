/// The ranks that hold, decompose, precondition and receive: every strategy as data. LibTorch-free.
/// Source: Pauloski et al., KAISA (SC'21), §3 and fig. 4; Zhang et al., DP-KFAC (2022), for `own_batch`.
#pragma once
#include <cstdint>
#include <vector>

#include "kfac/plan/counters.h"
#include "kfac/plan/layer_shape.h"
#include "kfac/plan/options.h"

namespace spillway::kfac {

/// The samples that a layer's factors are made of, and the ranks that keep the factors.
enum class FactorScope : uint8_t {
  everywhere,  ///< the global batch's samples; averaged over all ranks, and all ranks hold the factors
  owner,       ///< the global batch's samples; averaged over all ranks on the owner, which alone holds the factors
  own_batch,   ///< the owner's mini-batch; no other rank stages or holds factors, and none are sent
};

/// One layer's part of the plan. Ranks count from 0.
struct Assignment {
  FactorScope home = FactorScope::everywhere;
  /// The rank that decomposes each factor, in the order of LayerShape::factors(); all equal unless comm_opt.
  std::vector<int64_t> owners;
  /// The ranks that hold the eigenbases and precondition; ascending, contains every owner.
  std::vector<int64_t> workers;
  /// For each rank, the worker whose preconditioned gradient it takes; a worker takes its own. Workers serve disjoint,
  /// contiguous blocks of ranks whose sizes differ by one at most.
  std::vector<int64_t> worker_of;

  int64_t world() const { return std::ssize(worker_of); }
  bool is_worker(int64_t rank) const { return worker_of[rank] == rank; }
  bool holds_factors(int64_t rank) const { return home == FactorScope::everywhere || owners.front() == rank; }
  /// True when `rank` forms new factors of the layer in a factor step.
  bool stages_factors(int64_t rank) const { return home != FactorScope::own_batch || owners.front() == rank; }
  /// Returns `worker` and the ranks it serves, ascending: the members of its broadcast.
  std::vector<int64_t> served_by(int64_t worker) const;
};

/// Returns the number of gradient workers per layer: 1 for mem_opt and dp, world for comm_opt. For the other strategies
/// it is the k of the share k/world that `grad_worker_frac` stands for, to within 0.05 of a rank. Throws BadRequest
/// naming the nearest shares where there is no such k. Throws BadRequest for `automatic`, which is resolved first.
int64_t gradient_workers(Strategy strategy, double grad_worker_frac, int64_t world);

/// Returns one Assignment per layer, by the strategy, shares and placement of `options`:
///
///   strategy      home         owners               workers
///   comm_opt      everywhere   factor by factor     all
///   mem_opt       everywhere   one a layer          1
///   hybrid        everywhere   one a layer          f·W
///   owner_reduce  owner        one a layer          f·W
///   dp            own_batch    one a layer          1
///
/// With n workers the ranks form n contiguous blocks. A block's worker has the same place in its block as the owner has
/// in its own block; for n | world this is KAISA's grid. Ranks that give the same arguments get the same result. Throws
/// BadRequest for world < 1, for a share that is no k/world, and when the number of layer_grad_worker_fracs is not the
/// number of layers.
std::vector<Assignment> assign(const std::vector<LayerShape>& layers, int64_t world, const KfacOptions& options);

/// Returns one Assignment per layer of a stage of a model, to `world` ranks that have the stage. `model` are the
/// model's layers, and `numbers` the places of `layers` among them; without any `layers` are the model. With
/// Strategy::dp a layer has the owner that it has among the model's layers, because the owner's batch decides the
/// layer's factors. So no cut of the model changes them. Placement::measured is an exception, because seconds are those
/// of a stage. Otherwise owners share the work of the stage. Throws as assign().
std::vector<Assignment> assign_stage(const std::vector<LayerShape>& layers, const std::vector<LayerShape>& model,
                                     const std::vector<int64_t>& numbers, int64_t world, const KfacOptions& options);

/// Returns the bytes of Kfac's tensors on every rank, exact to the byte. Bytes held on average over ranks: F + f·E for
/// comm_opt, mem_opt and hybrid, F/W + f·E for owner_reduce, (F + E)/W for dp. `element_bytes` is the size of one
/// element of the state's type.
std::vector<FactorBytes> bytes_per_rank(const std::vector<LayerShape>& layers,
                                        const std::vector<Assignment>& assignments, int64_t element_bytes = 4);

}  // namespace spillway::kfac
