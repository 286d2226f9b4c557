/// One model trained under one budget: the work of every command of the tool, at different lengths.
#pragma once
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "kfac/kfac.h"
#include "runtime/data/sampler.h"
#include "runtime/interruption/interrupter.h"
#include "runtime/pipeline/pipelined_steps.h"
#include "runtime/recording/step_recorder.h"
#include "runtime/results/train_result.h"
#include "runtime/training/checkpoint.h"
#include "runtime/training/gradient_exchange.h"
#include "runtime/training/run_context.h"
#include "runtime/training/weight_update.h"
#include "swap/session.h"

namespace spillway::runtime {

class RandomState;

/// The end of a step, also of one that was left.
struct RunStep : StepOutcome {
  StepRequests requested;      ///< by any rank
  bool left = false;           ///< by some rank, in its midst: nothing was learned, and the run takes no more steps
  std::exception_ptr failure;  ///< the DiskError for which this rank left it; null: for a request, or another rank did
};

/// The result of a validation.
struct Validation {
  double metric = 0;
  bool left = false;           ///< by some rank, in its midst, so there is no metric
  std::exception_ptr failure;  ///< the DiskError for which this rank left it
};

/// A Session with a model, an optimizer and (if asked for) K-FAC in it, made from the context's seed. Two runs of a
/// context are bit-equal whatever their budgets. Collective over the context's ranks.
class TrainingRun {
 public:
  /// Makes the run. The options' host budget must be in bytes (see in_bytes()). `recorder`, if any, must outlive the
  /// run, and so must `requests`. A run without requests leaves no step. Throws BadRequest; OutOfBudget when not even
  /// the weights fit.
  TrainingRun(const RunContext& context, int64_t budget_bytes, double grad_worker_frac,
              StepRecorder* recorder = nullptr, TrainRequests* requests = nullptr);

  TrainingRun(const TrainingRun&) = delete;  // because K-FAC asks it for the learning rate
  TrainingRun& operator=(const TrainingRun&) = delete;

  /// Resumes from the checkpoint in the options' folder, whose position is the context's `start`. The whole state of
  /// this run is overwritten. Throws as read_checkpoint() does.
  void resume();
  /// Writes a checkpoint to the options' folder. Collective. Throws as write_checkpoint() does.
  void save();

  /// Runs one training step on the next cases. When a stop is requested, or the disk fails, before this rank's
  /// gradients are complete, all ranks leave the step: the run's state is then that of the last whole step, and can be
  /// saved. Every TrainOptions::damping_adaptation steps it also measures the loss of these cases once more, for
  /// Kfac::adapt_damping(); that forward pass is a step of its own, of the kind "adapt". Throws OutOfBudget, DiskError
  /// where the state is lost, ddl::CommError.
  RunStep step();
  /// Measures the metric on the held-out cases, each on one rank, and returns the mean on every rank. It may be left as
  /// a step may.
  Validation validate();

  Session& session() { return *session_; }
  /// Returns the model, or this rank's stages of it.
  TrainableModel& model() { return *model_; }
  /// Returns the steps of this rank's stages; null where the model is whole.
  PipelinedSteps* pipelined() { return pipelined_.get(); }
  /// Returns K-FAC's work in a pipeline's bubbles; null where there is none. A dry run makes no plan of them by itself.
  KfacInBubbles* in_bubbles() { return pipelined_ ? pipelined_->in_bubbles() : nullptr; }
  /// Returns the hash of the whole model's weights, on every rank. Collective where the model is cut.
  std::string weights_sha256();
  const kfac::Kfac* kfac() const { return update_->kfac(); }
  const LossScaler* loss_scaler() const { return update_->loss_scaler(); }
  int64_t parameters() const;
  const GradientExchange& gradients() const { return *gradients_; }

 private:
  using Cases = std::vector<Batch>;

  void make_model();
  /// Lets K-FAC's work fill a pipeline's bubbles, where the options ask for that.
  void fill_waits();
  /// Returns the cases of each micro-batch of the next step, in host memory.
  std::vector<Cases> next_cases();
  /// Copies the cases of a micro-batch to the device as one batch.
  Batch to_device(const Cases& cases) const;
  /// Returns the micro-batches as the model takes them.
  StepWork work_on(const std::vector<Cases>& cases) const;
  /// True when the damping is adapted after the coming step.
  bool adapts_damping() const;
  /// Adapts K-FAC's damping to the effect of the step on its own cases, whose loss was `loss` before it.
  void adapt_damping(const std::vector<Cases>& cases, const RandomState& random, const at::Tensor& loss);
  /// Returns this copy's loss of the micro-batches under the present weights, without gradients. `random` are the
  /// generators before the step's forward passes, so dropout is the same. Leaves buffers and generators alone.
  double loss_again(const std::vector<Cases>& cases, const RandomState& random);
  /// Returns the value of the rank that has one on all ranks of this copy of the model.
  double of_copy(std::optional<double> value) const;
  /// Runs forward and backward of all micro-batches. Returns their loss; undefined where this rank leaves the step, or
  /// has not the model's last stage.
  at::Tensor learn(const std::vector<Cases>& cases, RunStep& outcome);
  /// Runs the step up to its end. Throws Interrupted where some rank leaves it.
  void take_step(RunStep& outcome, const std::vector<Cases>& cases);
  std::optional<double> measure(const Cases& cases);
  /// Completes the gradients and the loss over the ranks, and joins the ranks' requests. Throws Interrupted on every
  /// rank when one of them has no loss.
  void average(const at::Tensor& loss, RunStep& outcome);
  /// Returns this rank's requests, and takes back the one for a checkpoint.
  StepRequests take_requests();
  /// Runs `body`, which a requested stop ends before its next operator. Returns true when it was ended so, or by a
  /// DiskError, which becomes `failure`. Without requests it runs `body` alone.
  bool leaves(const std::function<void()>& body, std::exception_ptr& failure);
  /// Returns the parameters and buffers of this rank's module.
  std::vector<StateTensor> weights();
  /// Returns everything of this rank that the next step depends on, except the generators.
  std::vector<StateTensor> state();

  const RunContext& context_;
  const c10::Device device_;
  TrainRequests* const requests_;
  Interrupter interrupter_;
  std::unique_ptr<Session> session_;
  Sampler sampler_;
  LrSchedule lr_;
  RunPosition position_;
  std::unique_ptr<TrainableModel> model_;
  std::unique_ptr<WeightUpdate> update_;
  std::unique_ptr<PipelinedSteps> pipelined_;  ///< null where the model is whole
  std::unique_ptr<GradientExchange> gradients_;
};

}  // namespace spillway::runtime
