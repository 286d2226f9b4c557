/// Who holds, who decomposes, who preconditions and who receives: every strategy as data. LibTorch-free.
/// Source: Pauloski et al., KAISA (SC'21), §3 and fig. 4; Zhang et al., DP-KFAC (2022), for `own_batch`.
#pragma once
#include <cstdint>
#include <vector>

#include "kfac/plan/layer_shape.h"
#include "kfac/plan/options.h"

namespace spillway::kfac {

/// Whose samples a layer's factors are made of, and who keeps them.
enum class FactorHome : uint8_t {
  everywhere,  ///< the global batch's; averaged over all ranks, all of which hold them
  owner,       ///< the global batch's; averaged over all ranks on the owner, who alone holds them
  own_batch,   ///< the owner's mini-batch's; nobody else stages or holds them and none are sent
};

/// One layer's part of the plan. Ranks count from 0.
struct Assignment {
  FactorHome home = FactorHome::everywhere;
  /// The rank that decomposes each factor, in the order of LayerShape::factors(); all equal unless comm_opt.
  std::vector<int64_t> owners;
  /// The ranks that hold the eigenbases and precondition; ascending, contains every owner.
  std::vector<int64_t> workers;
  /// For each rank, the worker whose preconditioned gradient it takes: itself for a worker. Workers serve disjoint,
  /// contiguous blocks of ranks whose sizes differ by one at most.
  std::vector<int64_t> worker_of;

  int64_t world() const { return static_cast<int64_t>(worker_of.size()); }
  bool is_worker(int64_t rank) const { return worker_of[static_cast<size_t>(rank)] == rank; }
  bool holds_factors(int64_t rank) const { return home == FactorHome::everywhere || owners.front() == rank; }
  /// Whether `rank` forms new factors of the layer in a factor step.
  bool stages_factors(int64_t rank) const { return home != FactorHome::own_batch || owners.front() == rank; }
  /// `worker` and the ranks it serves, ascending: the members of its broadcast.
  std::vector<int64_t> served_by(int64_t worker) const;
};

/// 1 for mem_opt and dp, world for comm_opt, else k of the share k/world that `grad_worker_frac` stands for, to within
/// 0.05 of a rank. Throws BadRequest naming the nearest shares where there is no such k, and for `automatic`, which is
/// resolved first.
int64_t gradient_workers(Strategy strategy, double grad_worker_frac, int64_t world);

/// One Assignment a layer, by strategy, shares and placement of `options`:
///
///   strategy      home         owners               workers
///   comm_opt      everywhere   factor by factor     all
///   mem_opt       everywhere   one a layer          1
///   hybrid        everywhere   one a layer          f·W
///   owner_reduce  owner        one a layer          f·W
///   dp            own_batch    one a layer          1
///
/// With n workers the ranks form n contiguous blocks; the worker of a block stands where the owner stands in its own,
/// which for n | world is KAISA's grid. Ranks that give the same arguments get the same answer. Throws BadRequest for
/// world < 1, a share that is no k/world, or a number of layer_grad_worker_fracs that is not the layers'.
std::vector<Assignment> assign(const std::vector<LayerShape>& layers, int64_t world, const KfacOptions& options);

/// Bytes of K-FAC state on one rank.
struct FactorBytes {
  int64_t factors = 0;     ///< running averages, always held
  int64_t eigenbases = 0;  ///< Q and v of the layers for which the rank is a gradient worker, always held
  int64_t staged = 0;      ///< a factor step's new factors, from the layer's backward to the end of step()
  int64_t messages = 0;    ///< with overlap_factors: factors on their way, and scratch, from a bucket's start to step()
  int64_t background = 0;  ///< with KfacOptions::staleness: plain memory beside the device's, neither counted nor paged
  int64_t held() const { return factors + eigenbases; }
  int64_t peak() const { return held() + staged; }
  bool operator==(const FactorBytes&) const = default;
};

/// For every rank, exact to the byte: what Kfac's tensors occupy. Held on average over ranks: F + f·E for comm_opt,
/// mem_opt and hybrid, F/W + f·E for owner_reduce, (F + E)/W for dp. `element_bytes` of the state's type.
std::vector<FactorBytes> bytes_per_rank(const std::vector<LayerShape>& layers,
                                        const std::vector<Assignment>& assignments, int64_t element_bytes = 4);

}  // namespace spillway::kfac
