/// K-FAC for any LibTorch training loop.
#pragma once
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "kfac/comm/rank_exchange.h"
#include "kfac/factors/layers.h"
#include "kfac/inverse/eigenbasis.h"
#include "kfac/plan/assignment.h"
#include "kfac/plan/counters.h"
#include "kfac/plan/options.h"
#include "kfac/state_dict.h"

namespace spillway::kfac {

class BackgroundSolver;
struct Damping;
struct FactorBucket;
struct FactorId;
struct LayerInverse;
struct StagedFactors;

/// Turns averaged gradients into natural ones, in place:
///
///     Kfac kfac(*model, {.lr = lr});
///     auto loss = loss_of(model->forward(x), y);   // a mean over the batch
///     kfac.watch(loss, x.size(0));
///     loss.backward();
///     …                                            // data-parallel: average the gradients
///     kfac.step();
///     optimizer.step();                            // SGD with momentum
///
/// Its state (running factors, eigenbases or inverses) is ordinary tensors, born here in their CategoryScope, so that
/// every step of a kind needs the same memory. A factor step holds its new factors besides, from a layer's backward to
/// step(); with `staleness`, owners hold decompositions in plain memory that nobody pages (BackgroundSolver says why).
/// Layers are always taken in the same order. With a communicator every rank makes the same calls on the same model and
/// has gradients for the same layers. Results are the same bits on ranks with equal processors and as many threads
/// (at::get_num_threads()), because each gradient worker multiplies by itself. Thread: the owner's.
class Kfac {
 public:
  /// Throws BadRequest for bad options and, on every rank, where ranks have other layers or distribution options than
  /// rank 0; c10::Error when no layer can be preconditioned, when the layers are spread over devices, or when world > 1
  /// and a weight is not float32. Collective.
  explicit Kfac(const torch::nn::Module& model, KfacOptions options = {}, ddl::Comm comm = {});
  Kfac(Kfac&&) noexcept;
  Kfac& operator=(Kfac&&) noexcept;
  ~Kfac();

  /// Between forward and backward: backward will show the layers' inputs and gradients. `batch`: samples that this
  /// rank's `loss` is the mean of; ranks may differ, and with other ranks 0 says that this one has none (`loss` is then
  /// not looked at). With m micro-batches, each watched and each loss divided by m, call it m times.
  /// Cost: a walk of the graph when the coming step updates factors, else nothing. Call it once per backward.
  void watch(const at::Tensor& loss, int64_t batch);

  /// Averages and takes in the staged factors, decomposes, exchanges, preconditions and clips, each when due; rewrites
  /// `.grad` of the layers' weights and biases, which must be unscaled already; `loss_scale` is what the watched loss
  /// was multiplied by (AMP). Layers without a gradient are left alone. Host synchronisation: in decompositions only.
  /// Throws c10::Error when a factor step was not watched; BadRequest when a schedule leaves its range; ddl::CommError.
  void step(double loss_scale = 1);

  /// Adapts the damping to ρ = (before − after) / predicted_reduction() by damping_change(), every T steps, right after
  /// the optimizer's step: the losses are those of the step's own batch, this rank's means. What momentum and
  /// parameters of other layers do to the loss counts as if it were the step's. Returns ρ; where no reduction was
  /// predicted, NaN, and nothing changes. eigen takes the new damping in the next step, the others at the next
  /// decomposition. One host synchronisation. Throws c10::Error without a step since the last call.
  double adapt_damping(double loss_before, double loss_after);

  /// Forgets what was watched since the last step: for one that is skipped. With overlap_factors every rank calls it.
  void discard();

  /// What the coming step will do: "plain", or of "factor", "decompose" and "launch" those that apply, joined by "+".
  /// Steps of a kind do the same work on the same memory, but for what warm_start saves.
  std::string_view kind() const;
  bool updates_factors() const;
  bool decomposes() const;  ///< renews the eigenbases: once inverse_interval steps have passed, or `staleness` later
  bool launches() const;    ///< hands its factors to the thread that decomposes them (`staleness` above 0)

  const std::vector<Layer>& layers() const { return layers_; }
  const std::vector<LeftAlone>& left_alone() const { return left_alone_; }
  const std::vector<Assignment>& assignments() const { return assignments_; }
  const KfacOptions& options() const { return options_; }  ///< what agree_on() made of them
  /// The running average `f` of layer `i`, in the order of LayerShape::factors(): [count, side, side], with 16-bit
  /// storage a copy. Undefined where this rank holds none.
  at::Tensor factor(size_t i, size_t f) const;
  /// The running averages as they are kept, in the order of factor_tensors(); empty where this rank holds none.
  std::vector<at::Tensor> held_factors(size_t i) const;
  /// What preconditions layer `i`, in the order of inverse_tensors(); empty where this rank is no gradient worker.
  const std::vector<at::Tensor>& inverse(size_t i) const;

  /// With `staleness`, what factor `f` of layer `i` was last decomposed into beside the steps: eigenvectors as rows,
  /// values NaN where that failed. Waits for the thread. Undefined where another rank decomposes it. Part of the state.
  Eigenbasis upcoming(size_t i, size_t f) const;

  /// Copies of all that a step depends on besides the model, on every rank. Collective. state_entries() copies nothing.
  StateDict state_dict() const;
  /// Goes on bit by bit from what state_dict() gave with any world size and strategy but the same layers, forms, method
  /// and staleness. Throws BadRequest naming the first tensor that does not fit, and has then changed nothing.
  void load_state_dict(const StateDict& state);
  /// Goes on from `counters`. The running averages, inverses and upcoming() are tensors: overwrite them in place.
  void resume(const KfacCounters& counters);

  /// What this rank holds now. The Ledger counts the same tensors, each with the allocator's rounding.
  FactorBytes memory_usage() const;
  KfacCounters counters() const;  ///< one host synchronisation
  KfacSeconds seconds() const;
  KfacFlops flops() const;

 private:
  bool factors_are_due() const;
  void commit_factors(double loss_scale);
  void commit_early_factors(double loss_scale);
  void renew_owned();
  void decompose_owned();
  void decompose_factor(size_t i, size_t f);
  void decompose_together(const std::vector<FactorId>& group);
  void keep_eigenvectors(size_t i, size_t f);
  void launch();
  void adopt();
  void share_inverses();
  void gather_reciprocal(size_t i);
  Damping damping() const;
  void precondition_layers();
  void precondition_layer(size_t i);
  void clip();

  KfacOptions options_;
  Exchange exchange_;
  std::vector<Layer> layers_;
  std::vector<LeftAlone> left_alone_;
  std::vector<Assignment> assignments_;
  std::vector<FactorId> owned_;  ///< what this rank decomposes, in order
  std::vector<FactorBucket> buckets_;
  std::shared_ptr<StagedFactors> staged_;
  std::vector<LayerInverse> inverses_;
  std::shared_ptr<BackgroundSolver> background_;  ///< with `staleness`
  std::vector<at::Tensor> dots_;                  ///< ⟨V, ∇⟩ of the layers of this step, [1] each
  std::vector<size_t> preconditioned_;
  at::Tensor dropped_, failed_;  ///< 0-dim counts on the device
  at::Tensor product_;           ///< Σ|⟨V, ∇⟩| of the last step, 0-dim
  bool has_product_ = false;     ///< until adapt_damping() has used it
  bool watched_ = false;
  int64_t watched_batch_ = 0;
  KfacCounters counters_;
  KfacSeconds seconds_;
  KfacFlops flops_;
};

}  // namespace spillway::kfac

namespace spillway {
using kfac::Kfac;
using kfac::KfacOptions;
}  // namespace spillway
