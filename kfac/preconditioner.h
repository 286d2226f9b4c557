/// K-FAC for any LibTorch training loop.
#pragma once
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "kfac/assignment.h"
#include "kfac/exchange.h"
#include "kfac/factors.h"
#include "kfac/layers.h"
#include "kfac/options.h"
#include "kfac/precondition.h"
#include "kfac/state.h"
#include "kfac/traffic.h"

namespace spillway::kfac {

/// What has happened since construction, on this rank.
struct KfacCounters {
  int64_t steps = 0;
  int64_t factor_updates = 0;         ///< steps that updated the factors
  int64_t decompositions = 0;         ///< steps that refreshed the eigenbases
  int64_t dropped_factors = 0;        ///< new factors that were not finite; the running average was kept
  int64_t failed_decompositions = 0;  ///< factors that kept their last eigenbasis or inverse
  int64_t last_factor_step = -1;  ///< the last whose update the interval asked for (burn-in does not count); -1: none
  int64_t last_decomposition_step = -1;
  int64_t last_adaptation = 0;  ///< steps that were done when adapt_damping() was last called
  double damping_scale = 1;     ///< what adapt_damping() has made of the options' damping: a factor
};

/// Wall seconds on the calling thread since construction (on CUDA: until the work was queued).
struct KfacSeconds {
  double factor_compute = 0;
  double factor_communicate = 0;
  double decompose = 0;
  double eigenbasis_communicate = 0;
  double precondition = 0;
  double gradient_communicate = 0;
};

/// Floating-point operations on this rank since construction, in the phases of KfacSeconds.
struct KfacFlops {
  double factor_compute = 0;  ///< of the products that were carried out, however many those are
  double decompose = 0;       ///< decomposition_flops(): as if by full solves
  double precondition = 0;
};

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
/// step(). Layers are always taken in the same order. With a communicator every rank makes the same calls on the same
/// model and has gradients for the same layers; the results are the same bits on every rank. Thread: the owner's.
class Kfac {
 public:
  /// Throws BadRequest for bad options and, on every rank, where ranks have other layers or distribution options than
  /// rank 0; c10::Error when no layer can be preconditioned, when the layers are spread over devices, or when world > 1
  /// and a weight is not float32. Collective.
  explicit Kfac(const torch::nn::Module& model, KfacOptions options = {}, ddl::Comm comm = {});
  Kfac(Kfac&&) noexcept = default;
  Kfac& operator=(Kfac&&) noexcept = default;
  ~Kfac();

  /// Between forward and backward: backward will show the layers' inputs and gradients. `batch`: samples that this
  /// rank's `loss` is the mean of; ranks may differ, and with other ranks 0 says that this one has none (`loss` is then
  /// not looked at). With m micro-batches, each watched and each loss divided by m, call it m times.
  /// Cost: a walk of the graph when the coming step updates factors, else nothing. Call it once per backward.
  void watch(const at::Tensor& loss, int64_t batch);

  /// Averages and takes in the staged factors, decomposes, exchanges, preconditions and clips, each when due; rewrites
  /// `.grad` of the layers' weights and biases, which must be unscaled already; `loss_scale` is what the watched loss
  /// was multiplied by (AMP). Layers without a gradient are left alone. Host synchronisation: in decompositions only.
  /// Throws c10::Error when a factor step was not watched; BadRequest when a schedule gives a value outside its range;
  /// ddl::CommError.
  void step(double loss_scale = 1);

  /// Adapts the damping to ρ = (before − after) / predicted_reduction() by damping_change(), every T steps, right after
  /// the optimizer's step: the losses are those of the step's own batch, this rank's means. What momentum and
  /// parameters of other layers do to the loss counts as if it were the step's. Returns ρ; where no reduction was
  /// predicted, NaN, and nothing changes. eigen takes the new damping in the next step, the others at the next
  /// decomposition. One host synchronisation. Throws c10::Error without a step since the last call.
  double adapt_damping(double loss_before, double loss_after);

  /// Forgets what was watched since the last step: for a step that is skipped (an overflow). With overlap_factors every
  /// rank calls it.
  void discard();

  /// What the coming step will do: "plain", "factor", "decompose" or "factor+decompose". Steps of a kind do the same
  /// work on the same memory.
  std::string_view kind() const;
  bool updates_factors() const;
  bool decomposes() const;

  const std::vector<Layer>& layers() const { return layers_; }
  const std::vector<LeftAlone>& left_alone() const { return left_alone_; }
  const std::vector<Assignment>& assignments() const { return assignments_; }
  /// As given, but for Strategy::automatic, which is resolved.
  const KfacOptions& options() const { return options_; }
  /// The running averages of layer `i`, in the order of LayerShape::factors(); empty where this rank does not hold
  /// them.
  const std::vector<at::Tensor>& factors(size_t i) const;
  /// What preconditions layer `i`, in the order of inverse_tensors(); empty where this rank is no gradient worker.
  const std::vector<at::Tensor>& inverse(size_t i) const { return inverses_[i].held; }

  /// Copies of all that a step depends on besides the model, on every rank, whoever holds it. Collective. Memory: the
  /// state of all layers; state_entries() goes tensor by tensor.
  StateDict state_dict() const;
  /// Takes what state_dict() gave, of any world size and strategy but the same layers, forms and method: a run goes on
  /// from it bit by bit, in the middle of an interval too. Throws BadRequest naming the first tensor that does not fit,
  /// and has then changed nothing.
  void load_state_dict(const StateDict& state);

  /// Goes on counting from `counters`, which say what the coming steps do. The running averages and inverses are
  /// tensors: overwrite them in place.
  void resume(const KfacCounters& counters);

  /// Bytes of the tensors that this rank holds now.
  FactorBytes state_bytes() const;
  /// One host synchronisation.
  KfacCounters counters() const;
  KfacSeconds seconds() const;
  KfacFlops flops() const;

 private:
  struct Statistics;

  void check_layers() const;
  bool factors_are_due() const;
  void commit_factors(double loss_scale);
  void commit_early_factors(double loss_scale);
  void decompose_owned();
  void decompose_factor(size_t i, size_t f);
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
  WeightIndex weight_index_;
  std::vector<Assignment> assignments_;
  std::vector<FactorBucket> buckets_;
  std::shared_ptr<Statistics> statistics_;
  std::vector<LayerInverse> inverses_;
  std::vector<at::Tensor> dots_;  ///< ⟨V, ∇⟩ of the layers of this step, [1] each
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
