/// One model trained under one budget: the work of every command of the tool, at different lengths.
#pragma once
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "ddl/torch/gradient_allreduce.h"
#include "kfac/kfac.h"
#include "runtime/data/sampler.h"
#include "runtime/interruption/interrupter.h"
#include "runtime/pipeline/pipelined_model.h"
#include "runtime/pipeline/refresh_in_waits.h"
#include "runtime/pipeline/step_record.h"
#include "runtime/recording/step_recorder.h"
#include "runtime/results/train_result.h"
#include "runtime/training/checkpoint.h"
#include "runtime/training/loss_scaler.h"
#include "runtime/training/run_context.h"
#include "swap/optim/optimizer.h"
#include "swap/session.h"

namespace spillway::runtime {

class RandomState;

/// Returns the optimizer of a model's parameters: `optimizer.kind`'s, and `optimizer.rest`'s for those that it leaves
/// alone. With `kfac` those are the ones that K-FAC does not precondition. With muon and soap they are vectors,
/// embeddings and the weights of the model's output layer.
std::unique_ptr<Optimizer> make_optimizer(const TrainOptions& options, const torch::nn::Module& module,
                                          const kfac::Kfac* kfac);

/// Requests to a run while it trains, joined over ranks once a step. The requests of one rank apply to every rank.
struct StepRequests {
  bool stop = false;        ///< this step is to be the last one
  bool checkpoint = false;  ///< a checkpoint is to follow this step
};

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
  const PipelinedModel* pipelined() const { return pipelined_; }
  /// Returns PipelinedModel::take_stage_seconds() of a model that is cut.
  std::vector<pipe::StageSeconds> take_stage_seconds() { return pipelined_->take_stage_seconds(); }
  /// Returns K-FAC's work in a pipeline's waits; null where there is none. A dry run makes no plan of them by itself.
  RefreshInWaits* in_waits() { return in_waits_ ? &*in_waits_ : nullptr; }
  /// Returns the mean seconds of this rank's own work in the steps since the last call, one or more.
  CycleSeconds take_cycle_seconds();
  const StepTimes& times() const { return times_; }
  /// Returns the hash of the whole model's weights, on every rank. Collective where the model is cut.
  std::string weights_sha256();
  const kfac::Kfac* kfac() const { return kfac_ ? &*kfac_ : nullptr; }
  const LossScaler* loss_scaler() const { return scaler_ ? &*scaler_ : nullptr; }
  int64_t parameters() const;
  int64_t gradient_bytes() const { return gradient_bytes_; }
  /// Returns the time within allreduces of gradients, of all steps. exposed_gradient_seconds() is the part that steps
  /// waited for.
  double gradient_seconds() const;
  double exposed_gradient_seconds() const;
  const ddl::GradientAllreduce* gradient_allreduce() const { return overlapped_ ? &*overlapped_ : nullptr; }

 private:
  using Cases = std::vector<Batch>;

  void make_model();
  void make_kfac(double grad_worker_frac);
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
  /// Averages gradients, buffers and the loss. A rank that leaves the step takes part all the same, because the other
  /// ranks wait for its gradients.
  void join(const at::Tensor& loss, RunStep& outcome);
  /// Returns this rank's requests, and takes back the one for a checkpoint.
  StepRequests take_requests();
  /// Runs `body`, which a requested stop ends before its next operator. Returns true when it was ended so, or by a
  /// DiskError, which becomes `failure`. Without requests it runs `body` alone.
  bool leaves(const std::function<void()>& body, std::exception_ptr& failure);
  /// Returns the gradients of the parameters that have one.
  std::vector<at::Tensor> gradients() const;
  /// Preconditions, clips and takes the optimizer's step. Where gradients overflowed, does nothing and returns false.
  bool apply_gradients();
  /// Returns the parameters and buffers of this rank's module.
  std::vector<StateTensor> weights();
  /// Returns the seconds since some moment, by the clock of a pipeline's items.
  double now() const { return context_.clock ? context_.clock->now() : now_(); }
  /// Multiplies all gradients of the model, so that their 2-norm together is clip_norm at most.
  void clip_gradients();
  /// Returns everything of this rank that the next step depends on, except the generators.
  std::vector<StateTensor> state();

  const RunContext& context_;
  const c10::Device device_;
  TrainRequests* const requests_;
  Interrupter interrupter_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<TrainableModel> model_;
  PipelinedModel* pipelined_ = nullptr;  ///< the model, where it is cut
  std::unique_ptr<Optimizer> optimizer_;
  std::optional<kfac::Kfac> kfac_;
  std::optional<RefreshInWaits> in_waits_;  ///< where K-FAC's work fills a pipeline's waits
  double update_seconds_ = 0;               ///< after the passes of steps, since they were taken
  int64_t untaken_steps_ = 0;               ///< steps in that
  const Now now_ = steady_now();
  StepTimes times_;
  std::optional<LossScaler> scaler_;
  std::optional<ddl::GradientAllreduce> overlapped_;
  Sampler sampler_;
  LrSchedule lr_;
  RunPosition position_;
  int64_t gradient_bytes_ = 0;
  double after_backward_seconds_ = 0;  ///< time within allreduces
};

}  // namespace spillway::runtime
