/// The change of weights by a step's gradients: loss scaling, K-FAC and the optimizer.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kfac/kfac.h"
#include "runtime/models/trainable_model.h"
#include "runtime/options/lr_schedule.h"
#include "runtime/pipeline/pipeline_executor.h"
#include "runtime/recording/step_recorder.h"
#include "runtime/training/checkpoint.h"
#include "runtime/training/loss_scaler.h"
#include "runtime/training/run_context.h"
#include "swap/optim/optimizer.h"

namespace spillway::runtime {

/// The weights of this rank's module, and what changes them once gradients are averaged: the loss scale and K-FAC,
/// where the options ask for them, and the optimizer.
class WeightUpdate {
 public:
  /// `module` is this rank's. `pipelined` is null where the model is whole; both and `context` must outlive this
  /// object. `lr` returns the learning rate of K-FAC's coming step. Collective over the ranks with the same weights.
  /// Throws BadRequest, CommError.
  WeightUpdate(const RunContext& context, torch::nn::Module& module, const PipelineExecutor* pipelined,
               const LrSchedule& schedule, double grad_worker_frac, std::function<double()> lr);

  WeightUpdate(const WeightUpdate&) = delete;  // because gradients' hooks and K-FAC refer to it
  WeightUpdate& operator=(const WeightUpdate&) = delete;

  /// Tells `listener`, which outlives this object, of the factors that travel beside backward.
  void listen(MessageListener& listener);
  /// Adds them to a recorder, which outlives this object.
  void record(StepRecorder& recorder);

  /// Returns the kind of the coming step: Kfac::work()'s, or `plain`.
  std::string kind() const;
  void set_lr(double lr) { optimizer_->set_lr(lr); }
  /// Scales the losses of a step's passes, and shows K-FAC their graphs.
  void prepare(StepWork& work);
  /// True where backward sends factors to other ranks, which wait for them.
  bool sends_in_backward() const;
  /// Preconditions, clips and takes the optimizer's step. Returns false, and does nothing, where gradients overflowed.
  bool apply();
  void zero_grad() { optimizer_->zero_grad(); }
  /// Forgets the gradients of a step that is left.
  void discard();
  /// Does K-FAC's work that waits for later steps, so that the state is complete. Collective.
  void finish_refreshes();

  /// Adds the optimizer's state, K-FAC's and the loss scale. Collective where the model is cut.
  void add_state(std::vector<StateTensor>& state) const;
  /// Returns K-FAC's counters as a state; empty without K-FAC.
  std::vector<StateTensor> counters() const;
  /// Takes K-FAC's counters, which tell its other state, from counters() that were read back.
  void resume_counters(const std::vector<StateTensor>& counters);
  /// Takes the numbers that are no tensors of its own from a state that was read back.
  void resume(const std::vector<StateTensor>& state);

  const std::vector<at::Tensor>& parameters() const { return optimizer_->parameters(); }
  kfac::Kfac* kfac() { return kfac_ ? &*kfac_ : nullptr; }
  const kfac::Kfac* kfac() const { return kfac_ ? &*kfac_ : nullptr; }
  const LossScaler* loss_scaler() const { return scaler_ ? &*scaler_ : nullptr; }

 private:
  void make_kfac(const LrSchedule& schedule, double grad_worker_frac, std::function<double()> lr);
  /// Multiplies all gradients of the model, so that their 2-norm together is clip_norm at most.
  void clip_gradients();

  const RunContext& context_;
  torch::nn::Module& module_;
  const PipelineExecutor* const pipelined_;
  std::unique_ptr<Optimizer> optimizer_;
  std::optional<kfac::Kfac> kfac_;
  std::optional<LossScaler> scaler_;
};

/// Returns the optimizer of a model's parameters: `optimizer.kind`'s, and `optimizer.rest`'s for those that it leaves
/// alone. With `kfac` those are the ones that K-FAC does not precondition. With muon and soap they are vectors,
/// embeddings and the weights of the model's output layer.
std::unique_ptr<Optimizer> make_optimizer(const TrainOptions& options, const torch::nn::Module& module,
                                          const kfac::Kfac* kfac);

}  // namespace spillway::runtime
