/// The refresh of the layers' curvature: at once, or piece by piece while later steps run.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "core/clock.h"
#include "kfac/refresh/background_renewals.h"
#include "kfac/refresh/factor_averages.h"
#include "kfac/refresh/factor_renewals.h"
#include "kfac/refresh/layer_dampings.h"

namespace spillway::kfac {

/// A factor's way from staged statistics to an inverse in use: statistics, average, renew, share. A refresh always has
/// these pieces. One that is not late does them in its step. A late one does them when run() or finish() asks, and at
/// the latest where its inverse is needed; with `staleness` the solver's thread does the renewals.
class CurvatureRefresh {
 public:
  CurvatureRefresh(const Setup& setup, const RefreshPlan& plan, StagedFactors& staged, LayerInverses& inverses,
                   Tally& tally);

  /// Opens the refresh of the coming step, which is late, where that is not done. Notes the samples of one of its
  /// micro-batches (−1: the next one) and returns that one's number.
  int64_t open(int64_t samples, int64_t micro_batch);
  /// Does what the coming step needs of refreshes, and sets its dampings. Its statistics are those of `samples` samples
  /// on this rank. Collective. Throws c10::Error for a loss scale that a refresh has not waited for.
  void step(int64_t samples, double loss_scale);
  /// Forgets the coming step's refresh. Throws c10::Error where it is averaged.
  void discard();
  /// Opens the refreshes whose inverses the last steps have renewed and not yet used.
  void resume();

  // Each of these does the work of KfacRefreshes' function of its name.
  void defer(bool on);
  void time_by(Now now) { now_ = std::move(now); }
  void run(int64_t step, int64_t micro_batches, size_t index);
  bool waits(int64_t step, size_t index) const;
  std::vector<double> seconds(int64_t step) const;
  void forget_seconds() { seconds_of_set_.clear(); }
  void finish();

  const LayerDampings& dampings() const { return dampings_; }
  void end_step() { dampings_.end_step(); }  ///< frees what only one step needs
  /// Returns KfacState::pending_basis().
  Eigenbasis pending_basis(const FactorId& id) const { return background_ ? background_->pending(id) : Eigenbasis{}; }
  /// Returns FactorBytes::background.
  int64_t background_bytes() const { return background_ ? background_->bytes() : 0; }

 private:
  void step_now(int64_t samples, double loss_scale);
  void step_late(double loss_scale);
  void run(OpenRefresh& refresh, size_t index);
  void run_after_needs(OpenRefresh& refresh, size_t index);
  void run_all(OpenRefresh& refresh, RefreshWork::What what);
  void finish(OpenRefresh& refresh);
  void adopt(const OpenRefresh& refresh);

  const Setup& setup_;
  const RefreshPlan& plan_;
  StagedFactors& staged_;
  LayerInverses& inverses_;
  Tally& tally_;
  LayerDampings dampings_;
  FactorAverages averages_;
  FactorRenewals renewals_;
  std::unique_ptr<BackgroundRenewals> background_;  ///< only with `staleness`
  std::deque<OpenRefresh> open_;                    ///< late refreshes, by step
  Now now_ = steady_now();
  std::map<size_t, std::vector<double>> seconds_of_set_;  ///< by set: shortest seconds of each piece
};

}  // namespace spillway::kfac
