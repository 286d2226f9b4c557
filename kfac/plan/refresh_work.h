/// The refresh of layers' curvature, taken apart into pieces that can be done while a pipeline's rank waits.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace spillway::kfac {

/// One piece of a refresh. The pieces of a step's layers are done in the order of KfacRefreshes::work(), or in any
/// other one in which each comes after those that it needs: a layer's statistics by ascending micro-batch, then the
/// averages of its factors, then their renewal, then the sending of the new inverse. A renewal of a large factor has
/// several pieces, one after the other. Ranks with the same layers do averages and sends in one order.
struct RefreshWork {
  /// The kinds of pieces.
  enum class What : uint8_t {
    statistics,  ///< the products of one layer for one micro-batch, from its inputs and output gradients
    average,     ///< averages over ranks and the running averages, of some layers
    renew,       ///< a piece of new eigenvectors or inverses, of some factors that this rank owns
    share,       ///< the new inverse of one layer goes to its gradient workers
  };
  What what = What::statistics;
  int64_t index = 0;  ///< number of the layer; of the group of layers (average) or factors (renew) of this refresh
  int64_t micro_batch = 0;          ///< with statistics
  int64_t piece = 0;                ///< with renew: number of the piece within its group
  std::vector<size_t> layers = {};  ///< layers whose factors it reads; empty where another rank does that work
  bool operator==(const RefreshWork&) const = default;
};

/// Returns the numbers among `all`, a refresh_work(), of the pieces that one comes right after. A group's pieces of
/// renewal come after each other, the first one after averages, and sends after the last one. Over several ranks
/// another one may renew a factor, so first pieces come after all averages, and sends after all renewals.
std::vector<size_t> needs_of(const std::vector<RefreshWork>& all, size_t piece, int64_t world);

/// Returns `statistics of layer 3, micro-batch 0` or `renewal of group 2, piece 1`.
std::string describe(const RefreshWork& work);

}  // namespace spillway::kfac
