/// The renewal of eigenbases on the solver's thread, beside the steps (KfacOptions::staleness).
#pragma once
#include <cstdint>

#include "kfac/inverse/background_solver.h"
#include "kfac/refresh/factor_renewals.h"

namespace spillway::kfac {

/// Decomposes copies of the factors that this rank owns, in plain memory, while the steps go on.
class BackgroundRenewals {
 public:
  BackgroundRenewals(const Setup& setup, const StagedFactors& staged, FactorRenewals& renewals, Tally& tally);

  /// Copies the running averages and starts to decompose them.
  void start();
  /// Takes the results of the last start(), for which it waits, into the inverses that the refresh writes.
  void adopt(const OpenRefresh& refresh);
  /// Returns KfacState::pending_basis().
  Eigenbasis pending(const FactorId& id);
  int64_t bytes() const { return solver_.bytes(); }

 private:
  const Setup& setup_;
  const StagedFactors& staged_;
  FactorRenewals& renewals_;
  Tally& tally_;
  BackgroundSolver solver_;
};

}  // namespace spillway::kfac
