/// K-FAC for any LibTorch training loop.
#pragma once
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "core/timeline.h"
#include "ddl/torch/comm.h"
#include "kfac/factors/layers.h"
#include "kfac/model_stages.h"
#include "kfac/plan/counters.h"
#include "kfac/plan/options.h"
#include "kfac/plan/refresh_work.h"

namespace spillway {
class MessageListener;
}

namespace spillway::kfac {

struct Assignment;
struct Eigenbasis;
struct KfacParts;

/// The names and tensors of a Kfac's state in the order of state_entries(), and `counters` last.
using StateDict = std::vector<std::pair<std::string, at::Tensor>>;

/// The refreshes of a Kfac's curvature, seen from a loop that does their work where it waits. It is valid while its
/// Kfac lives.
class KfacRefreshes {
 public:
  /// Makes refreshes wait for run(), with curvature_delay: backward's inputs and output gradients are kept meanwhile.
  /// step() does what is left of a refresh whose inverse it needs. No bit depends on it. Call it between steps.
  void defer(bool on);
  /// Makes `now` tell the times of seconds(). Call it before the first step.
  void time_by(Now now);
  /// Returns the steps after which the same layers are due again.
  int64_t cycle_length() const;

  /// Returns the pieces of the refresh of a step's layers, counted from the very first step, in an order that is right.
  /// Empty where nothing may wait. Ranks with the same layers get the same list.
  std::vector<RefreshWork> work(int64_t step, int64_t micro_batches) const;
  /// Does piece `index` of work(), after those pieces that it needs and that are not done. Ranks with the same
  /// layers run averages and sends in one order. Throws c10::Error when it is done, or when that step's refresh is not
  /// open: before its first watch, and after curvature_delay steps. Throws ddl::CommError.
  void run(int64_t step, int64_t micro_batches, size_t index);
  /// Returns true when piece `index` of the refresh of that step's layers waits: its refresh is open, and it is not
  /// done.
  bool waits(int64_t step, size_t index) const;
  /// Does all that waits, so that the state is complete. Call it between steps. Collective over the ranks.
  void finish();
  /// Returns the shortest seconds of each piece in refreshes of the layers that are due in `step`; empty before the
  /// first. Only refreshes since forget_seconds() count.
  std::vector<double> seconds(int64_t step) const;
  void forget_seconds();
  /// Returns the most bytes of inputs and output gradients that were kept at once for statistics that wait. An input
  /// that several layers share counts for each of them.
  int64_t held_peak_bytes() const;

  /// Tells `observer` of each bucket of factors that is reduced beside backward: its start, end and bytes, on the
  /// thread that reduces them. It is never called without overlap_factors on several ranks. Call it between steps.
  void observe(WorkerTimeline::Observer observer);

  /// Tells `listener`, which outlives this object, of each bucket of factors that is reduced beside backward: when it
  /// is handed over, and when it is needed.
  void listen(MessageListener& listener);

 private:
  friend class Kfac;
  explicit KfacRefreshes(KfacParts& parts) : parts_(&parts) {}
  KfacParts* parts_;
};

/// The state of a Kfac, tensor by tensor, and the ranks that hold it. It is valid while its Kfac lives.
class KfacState {
 public:
  const std::vector<Assignment>& assignments() const;  ///< the ranks' parts, by layer
  /// Returns the running average `f` of layer `i`, in the order of LayerShape::factors(): [count, side, side]: a new
  /// tensor. It is undefined where this rank holds none.
  at::Tensor factor(size_t i, size_t f) const;
  /// Returns the running averages as they are kept, in the order of factor_tensors(); empty where this rank holds none.
  std::vector<at::Tensor> held_factors(size_t i) const;
  /// Returns the tensors that precondition layer `i`, in the order of inverse_tensors(); empty where this rank is no
  /// gradient worker.
  const std::vector<at::Tensor>& inverse(size_t i) const;

  /// Returns true when the layer, after so many steps, has a renewed inverse for later ones, with curvature_delay.
  bool renews(size_t i, int64_t steps) const;
  /// Returns that inverse, as inverse(). Its pieces of work must be done (KfacRefreshes::finish()).
  const std::vector<at::Tensor>& next_inverse(size_t i) const;

  /// Returns the largest mean curvature of each layer so far, [layers], the same on every rank (DampingScope::network).
  /// Undefined where the damping is of another kind. Part of the state.
  const at::Tensor& largest_curvature() const;

  /// Returns the last decomposition of factor `f` of layer `i` that ran beside the steps, with `staleness`.
  /// Eigenvectors are rows; values are NaN where the decomposition failed. Waits for the solver's thread. Undefined
  /// where another rank decomposes the factor. Part of the state.
  Eigenbasis pending_basis(size_t i, size_t f) const;
  /// Continues from `counters`. held_factors(), inverse(), largest_curvature() and pending_basis() are tensors:
  /// overwrite them in place, before.
  void resume(const KfacCounters& counters);

 private:
  friend class Kfac;
  explicit KfacState(KfacParts& parts) : parts_(&parts) {}
  KfacParts* parts_;
};

/// A preconditioner that turns averaged gradients into natural gradients, in place:
///
///     Kfac kfac(*model, {.lr = lr});
///     auto loss = loss_of(model->forward(x), y);   // a mean over the batch
///     kfac.watch(loss, x.size(0));
///     loss.backward();
///     …                                            // data-parallel: average the gradients
///     kfac.step();
///     optimizer.step();                            // SGD with momentum
///
/// Its state (running factors, eigenbases or inverses) is ordinary tensors. The constructor allocates them in their
/// CategoryScope, so that every step of a kind needs the same memory. A factor step also holds its new factors, from a
/// layer's backward to step(). With `staleness`, owners hold decompositions in plain memory that is never paged
/// (BackgroundSolver gives the reason). Layers are always taken in the same order. With a communicator, every rank
/// makes the same calls on the same model and has gradients for the same layers. Ranks with equal processors and equal
/// thread counts (at::get_num_threads()) get the same bits. The processors matter because each gradient worker computes
/// its products by itself. Call it only from the thread that owns it.
class Kfac {
 public:
  /// Throws BadRequest for bad options. Throws BadRequest on every rank when a rank's layers or distribution options
  /// differ from rank 0's. With `stages`, `model` is one stage of a model, and `comm` joins the ranks that have it.
  /// Throws c10::Error when no layer can be preconditioned, when the layers are spread over
  /// devices, or when world > 1 and a weight is not float32. Collective.
  explicit Kfac(const torch::nn::Module& model, KfacOptions options = {}, ddl::Comm comm = {},
                const ModelStages& stages = {});
  /// Preconditions a model of another language or library, whose modules with parameters these are, in its order.
  /// `find_reruns` is told of each opaque node in the graphs that are watched.
  explicit Kfac(const std::vector<ForeignModule>& modules, KfacOptions options = {}, ddl::Comm comm = {},
                RerunFinder find_reruns = {});
  Kfac(Kfac&&) noexcept;
  Kfac& operator=(Kfac&&) noexcept;
  ~Kfac();

  /// Makes the coming backward show the layers' inputs and gradients. Call it between forward and backward, once per
  /// backward. `batch` is the number of samples that this rank's `loss` is the mean of. Ranks may differ in it. With
  /// several ranks, 0 says that this rank has no samples, and `loss` is not looked at. With m micro-batches, divide
  /// each loss by m and watch each: m calls. Cost: a walk of the graph when the coming step updates factors, else
  /// nothing.
  void watch(const at::Tensor& loss, int64_t batch);
  /// Does what watch() does for a stage of a model, whose backward begins at `roots`.
  void watch_stage(at::TensorList roots, const StageSamples& samples);

  /// Watches a pass of the model that runs while backward does, as a checkpoint makes it. Its `batch` samples count
  /// when backward reaches it, so that a pass which only renews what a watched one had saved counts no second time.
  void watch_rerun(at::TensorList roots, int64_t batch);
  /// Returns the layers that no backward of the coming step has shown, at the first call with a watched step; later
  /// ones return none. Call it between backward and step(). With several ranks, a layer that any rank saw was seen.
  /// Collective. Throws c10::Error when a layer has a gradient that a compiled graph, or another function that shows
  /// nothing, has made: it would be preconditioned without curvature. One host synchronization for each layer without
  /// statistics.
  std::vector<SkippedLayer> unseen_layers();

  /// Averages and takes in the staged factors, decomposes, exchanges, preconditions and clips, each when due. Rewrites
  /// `.grad` of the layers' weights and biases, which must be unscaled already. `loss_scale` is the number that the
  /// watched loss was multiplied by (AMP). Layers without a gradient are left alone. Synchronizes with the host in
  /// decompositions only. Throws c10::Error when a factor step was not watched, BadRequest when a schedule leaves its
  /// range or no layer has as many positions as factor_samples asks for, and ddl::CommError.
  void step(double loss_scale = 1);

  /// Adapts the damping to ρ = (before − after) / predicted_reduction() by damping_change(). Call it every T steps,
  /// right after the optimizer's step. The losses are those of the step's own batch, this rank's means. The effects of
  /// momentum and of other layers' parameters on the loss count as if they were the step's. Returns ρ. When no
  /// reduction was predicted, it returns NaN and the damping does not change. The eigen method uses the new damping in
  /// the next step, the other methods at the next decomposition. One host synchronization. Throws c10::Error without a
  /// step since the last call.
  double adapt_damping(double loss_before, double loss_after);

  /// Forgets everything that was watched since the last step. Call it for a step that is skipped. With overlap_factors
  /// every rank calls it. Throws c10::Error where KfacRefreshes::run() has averaged that step's statistics already:
  /// they are part of the running averages.
  void discard();

  StepWork work() const;  ///< the work of the coming step
  const std::vector<Layer>& layers() const;
  const std::vector<SkippedLayer>& left_alone() const;
  const KfacOptions& options() const;  ///< the options that agreed_options() returned
  KfacCounters counters() const;       ///< two host synchronizations
  KfacUsage usage() const;             ///< bytes on this rank, seconds and operations; no host synchronization

  KfacRefreshes refreshes() const;
  KfacState state() const;
  /// Returns copies of everything that a step depends on besides the model, on every rank. Collective. state_entries()
  /// copies nothing.
  StateDict state_dict() const;
  /// Continues bit by bit from the result of state_dict(). World size and strategy may differ; layers, forms, method
  /// and staleness must be the same. Throws BadRequest naming the first tensor that does not fit; nothing has changed
  /// then.
  void load_state_dict(const StateDict& state);

 private:
  std::unique_ptr<KfacParts> parts_;
};

}  // namespace spillway::kfac

namespace spillway {
using kfac::Kfac;
using kfac::KfacOptions;
}  // namespace spillway
