/// The work behind Kfac: its state, and the phases of a step.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/clock.h"
#include "core/timeline.h"
#include "kfac/comm/rank_exchange.h"
#include "kfac/factors/layers.h"
#include "kfac/inverse/background_solver.h"
#include "kfac/inverse/precondition.h"
#include "kfac/model_stages.h"
#include "kfac/open_refresh.h"
#include "kfac/plan/assignment.h"
#include "kfac/plan/counters.h"
#include "kfac/plan/factor_traffic.h"
#include "kfac/plan/options.h"
#include "kfac/plan/place_factors.h"
#include "kfac/plan/update_cycle.h"
#include "kfac/staged_factors.h"
#include "kfac/watched_graph.h"

namespace spillway {
class MessageListener;
}

namespace spillway::kfac {

/// A preconditioner that does what Kfac promises. Each public function does the work of Kfac's function of its name.
class Preconditioner {
 public:
  /// Returns the layers of the model for these options, which are valid.
  using LayerFinder = std::function<FoundLayers(const KfacOptions& options)>;
  Preconditioner(const LayerFinder& find, KfacOptions options, ddl::Comm comm, ModelStages stages);

  void watch(at::TensorList roots, int64_t batch, bool again, int64_t micro_batch);
  void watch_rerun(at::TensorList roots, int64_t batch);
  void find_reruns(RerunFinder finder) { find_reruns_ = std::move(finder); }
  std::vector<SkippedLayer> unseen_layers();
  void step(double loss_scale);
  double adapt_damping(double loss_before, double loss_after);
  void observe_factors(WorkerTimeline::Observer observer);
  void listen(MessageListener& listener);
  void discard();
  void defer(bool on);
  void time_by(Now now) { now_ = std::move(now); }
  std::vector<RefreshWork> refresh_work(int64_t step, int64_t micro_batches) const;
  void run(int64_t step, int64_t micro_batches, size_t index);
  bool waits(int64_t step, size_t index) const;
  std::vector<double> refresh_seconds(int64_t step) const;
  void forget_refresh_seconds() { seconds_of_set_.clear(); }
  void finish_refreshes();
  bool renews(size_t i, int64_t steps) const;
  int64_t steps() const { return counters_.steps; }
  const std::vector<at::Tensor>& next_inverse(size_t i) const { return next_[i].held; }
  int64_t cycle_length() const { return cycle_.length(); }

  std::string_view kind() const;
  bool updates_factors() const { return updates_factors(cycle_); }
  bool decomposes() const { return decomposes(cycle_); }
  bool launches() const;

  const RankExchange& exchange() const { return exchange_; }
  const std::vector<Layer>& layers() const { return layers_; }
  const std::vector<SkippedLayer>& left_alone() const { return left_alone_; }
  const std::vector<Assignment>& assignments() const { return assignments_; }
  const KfacOptions& options() const { return options_; }
  at::Tensor factor(size_t i, size_t f) const;
  std::vector<at::Tensor> held_factors(size_t i) const;
  const std::vector<at::Tensor>& inverse(size_t i) const { return inverses_[i].held; }
  int64_t held_peak_bytes() const { return staged_->held_peak_bytes; }
  const at::Tensor& largest_curvature() const { return largest_curvature_; }
  Eigenbasis pending_basis(size_t i, size_t f) const;

  void resume(const KfacCounters& counters);
  FactorBytes memory_usage() const;
  KfacCounters counters() const;
  KfacSeconds seconds() const;
  KfacFlops flops() const;

 private:
  size_t due_set() const { return cycle_.set_of(counters_.steps); }
  /// Returns the layers whose factors the coming step updates and decomposes, where it does either.
  const std::vector<size_t>& due_layers() const { return cycle_.sets()[due_set()]; }
  std::shared_ptr<const GraphWatch> graph_watch(int64_t micro_batch) const;
  void take_reruns();
  void forget_watches();
  double sight_of(size_t i) const;
  std::string blindness(size_t i) const;
  /// Returns true when the coming step updates factors, or uses new curvature, of layers with this cycle.
  bool updates_factors(const UpdateCycle& cycle) const;
  bool decomposes(const UpdateCycle& cycle) const;
  /// Allocates the layers' running averages and inverses.
  void make_state();
  void check_samples() const;
  void commit_factors(double loss_scale);
  void commit_layers(const std::vector<size_t>& layers, const FactorBucket* bucket, int64_t samples, double loss_scale);
  void commit_early_factors(double loss_scale);
  void renew_owned();
  void decompose_owned();
  void decompose_factor(size_t i, size_t f);
  void follow_factor(size_t i, size_t f);
  void decompose_together(const std::vector<FactorId>& group);
  void keep_eigenvectors(size_t i, size_t f);
  void start_decomposition();
  void adopt_decomposition();
  void share_inverses();
  void share_inverse(size_t i);
  void gather_reciprocal(size_t i);
  void note_curvature(const std::vector<size_t>& layers);
  void set_damping();
  Damping damping(size_t i) const;
  /// The layers whose new factors are averaged together; `bucket` is null where they do not travel.
  struct AverageGroup {
    std::vector<size_t> layers;
    const FactorBucket* bucket;
  };
  bool is_late(int64_t step) const;
  std::vector<AverageGroup> average_groups(size_t set) const;
  std::vector<std::vector<FactorId>> renewal_groups(size_t set, int64_t rank) const;
  void renew(const std::vector<FactorId>& group);
  /// Returns the pieces in which a late refresh renews the group.
  int64_t pieces_of(const std::vector<FactorId>& group) const;
  /// Returns the renewals of a set's factors. Every rank gets as many, so that ranks agree on their order.
  std::vector<RefreshWork> renewals(size_t set) const;
  void renew_piece(OpenRefresh& refresh, const RefreshWork& work);
  void invert_piece(const FactorId& id, std::optional<PanelInverse>& inverse, bool is_last);
  void follow_piece(const FactorId& id, std::optional<SubspaceIteration>& subspace, bool is_last);
  OpenRefresh& open(int64_t step);
  /// Opens the refresh of this step where that is not done, and returns the micro-batch's number in it.
  int64_t open_refresh(int64_t batch, int64_t micro_batch);
  void run(OpenRefresh& refresh, size_t index);
  void run_after_needs(OpenRefresh& refresh, size_t index);
  void finish(OpenRefresh& refresh);
  /// Returns the inverse that a renewal writes: the layer's own, or the one that takes its place later.
  LayerInverse& renewed(size_t i);
  /// Whatever changes the layer's inverse calls this.
  void forget_mean_curvature(size_t i) {
    if (mean_curvatures_.defined()) knows_mean_curvature_[i] = false;
  }
  void adopt(OpenRefresh& refresh);
  /// Does the part of a late refresh that this step needs.
  void step_late(double loss_scale);
  /// Opens the refreshes whose inverses the last steps have renewed and not yet used.
  void resume_refreshes();
  void precondition_layers();
  bool has_gamma(size_t i) const;
  void set_gammas();
  void precondition_layer(size_t i);
  LayerGradient gradient_of(size_t i) const;
  void share_gradients();
  void clip();
  /// Returns the rows of all stages' layers, in the model's order, from those of some layers of this stage.
  at::Tensor all_rows(const at::Tensor& rows, const std::vector<size_t>& layers) const;

  KfacOptions options_;
  RankExchange exchange_;
  const std::function<at::Tensor(const at::Tensor&, const std::vector<int64_t>&)> rows_of_stages_;
  std::vector<Layer> layers_;
  std::vector<int64_t> numbers_;  ///< by layer: its number in the model
  std::vector<SkippedLayer> left_alone_;
  std::vector<Assignment> assignments_;
  std::vector<FactorId> owned_;  ///< the factors that this rank decomposes, in order
  UpdateCycle cycle_;
  UpdateCycle cycle_of_model_;                      ///< the cycle of all stages' layers, whose work each stage counts
  std::vector<std::vector<FactorBucket>> buckets_;  ///< the buckets of each set of the cycle
  std::shared_ptr<StagedFactors> staged_;
  std::vector<LayerInverse> inverses_;
  std::deque<OpenRefresh> open_;    ///< late refreshes, by step
  OpenRefresh* current_ = nullptr;  ///< the one that a piece of work is of
  std::vector<LayerInverse> next_;  ///< by layer: the inverse of its open refresh, once a renewal has begun
  Now now_ = steady_now();
  std::map<size_t, std::vector<double>> seconds_of_set_;  ///< by set: shortest seconds of each piece
  std::vector<std::string> late_kinds_;                   ///< by step of the cycle
  std::unique_ptr<BackgroundSolver> background_;          ///< only with `staleness`
  std::vector<at::Tensor> sums_;  ///< ⟨V, ∇⟩, ‖V‖² and ‖W‖² of the layers of this step, [3] each
  std::vector<size_t> preconditioned_;
  at::Tensor largest_curvature_;  ///< Kfac::largest_curvature()
  Damping damping_;               ///< the damping of this step, without a curvature
  at::Tensor curvatures_;         ///< DampingScope::network's of each layer; defined between steps with late refreshes
  at::Tensor mean_curvatures_;    ///< by layer; defined where γ is of a step and not of a decomposition
  std::vector<bool> knows_mean_curvature_;
  at::Tensor gammas_;            ///< γ of each layer; defined while step() preconditions
  at::Tensor dropped_, failed_;  ///< 0-dim counts on the device
  at::Tensor nu_;                ///< ν of the last step, 0-dim
  at::Tensor product_;           ///< Σ|⟨V, ∇⟩| of the last step, 0-dim
  bool has_product_ = false;     ///< true until adapt_damping() has used the product
  bool watched_ = false;
  int64_t watched_batch_ = 0;
  RerunFinder find_reruns_;
  std::vector<bool> was_seen_;  ///< by layer; empty until unseen_layers() has looked once
  KfacCounters counters_;
  KfacSeconds seconds_;
  KfacFlops flops_;
};

}  // namespace spillway::kfac
