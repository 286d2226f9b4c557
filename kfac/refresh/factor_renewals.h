/// The renewal of the layers' inverses from their running averages.
#pragma once
#include <optional>

#include "kfac/refresh/layer_inverses.h"
#include "kfac/refresh/open_refresh.h"
#include "kfac/refresh/refresh_plan.h"
#include "kfac/refresh/setup.h"
#include "kfac/refresh/staged_factors.h"

namespace spillway::kfac {

/// Decomposes or inverts the factors that this rank owns, and sends what comes out to the gradient workers. A refresh
/// tells which inverses are written, and the damping.
class FactorRenewals {
 public:
  FactorRenewals(const Setup& setup, const RefreshPlan& plan, const StagedFactors& staged, LayerInverses& inverses,
                 Tally& tally)
      : setup_(setup), plan_(plan), staged_(staged), inverses_(inverses), tally_(tally) {}

  /// Does a piece of kind `renew`; nothing where another rank does it.
  void renew(OpenRefresh& refresh, const RefreshWork& piece);
  /// Sends the layer's new inverse from its owners to its gradient workers. Collective over these. Throws
  /// ddl::CommError.
  void share(const OpenRefresh& refresh, size_t layer);
  /// Keeps the last eigenvectors of a factor whose decomposition failed.
  void keep_eigenvectors(const OpenRefresh& refresh, const FactorId& id);
  /// Returns the tensors that the factor's new eigenbasis goes to.
  Eigenbasis basis(const OpenRefresh& refresh, const FactorId& id);
  void count(const FactorId& id);  ///< Counts the operations of a decomposition.

 private:
  LayerInverse& inverse(const OpenRefresh& refresh, const FactorId& id) {
    return inverses_.renewed(id.layer, refresh.is_late);
  }
  void renew_whole(const OpenRefresh& refresh, const RenewalGroup& group);
  void decompose_together(const OpenRefresh& refresh, const RenewalGroup& group);
  void decompose_one(const OpenRefresh& refresh, const FactorId& id);
  void invert(const OpenRefresh& refresh, const FactorId& id);
  void follow(const OpenRefresh& refresh, const RenewalGroup& group);
  void invert_piece(const OpenRefresh& refresh, const FactorId& id, std::optional<PanelInverse>& open, bool is_last);
  void follow_piece(const OpenRefresh& refresh, const FactorId& id, std::optional<SubspaceIteration>& open,
                    bool is_last);
  void gather_reciprocal(const OpenRefresh& refresh, size_t layer);

  const Setup& setup_;
  const RefreshPlan& plan_;
  const StagedFactors& staged_;
  LayerInverses& inverses_;
  Tally& tally_;
};

}  // namespace spillway::kfac
