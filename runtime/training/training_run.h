/// One model trained under one budget: what every command of the tool does, at different lengths.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "ddl/torch/gradient_allreduce.h"
#include "kfac/kfac.h"
#include "runtime/data/sampler.h"
#include "runtime/models/task.h"
#include "runtime/training/checkpoint.h"
#include "runtime/training/loss_scaler.h"
#include "runtime/training/run_context.h"
#include "runtime/training/step_recorder.h"
#include "swap/optim/optimizer.h"
#include "swap/session.h"

namespace spillway {

/// Requests to a run in its middle, joined once a step: one rank's are every rank's.
struct StepRequests {
  bool stop = false;        ///< this step is to be the last one
  bool checkpoint = false;  ///< a checkpoint is to follow this step
};

struct StepOutcome {
  double loss = 0;  ///< mean over ranks and micro-batches
  double lr = 0;
  double seconds = 0;
  std::string kind;
  double bound_seconds = 0;  ///< least time of such a step under the budget; 0 before one was planned
  StepRequests requested;    ///< by any rank
  bool skipped = false;      ///< fp16: gradients overflowed, and nothing was learnt
};

/// A Session with a model, an optimizer and (if asked for) K-FAC in it, made from the context's seed: two runs of a
/// context are bit-equal whatever their budgets. Collective over the context's ranks.
class TrainingRun {
 public:
  /// The options' host budget must be in bytes (see in_bytes). `recorder`, if any, must outlive the run. Throws
  /// BadRequest; OutOfBudget when not even the weights fit.
  TrainingRun(const RunContext& context, int64_t budget_bytes, double grad_worker_frac,
              StepRecorder* recorder = nullptr);

  TrainingRun(const TrainingRun&) = delete;  // K-FAC asks it for the learning rate
  TrainingRun& operator=(const TrainingRun&) = delete;

  /// Goes on from the checkpoint in the options' folder, whose position is the context's `start`: everything that this
  /// run has is overwritten. Throws as read_checkpoint().
  void resume();
  /// Writes a checkpoint to the options' folder. Collective. Throws as write_checkpoint().
  void save();
  /// Steps since the very first, resumed ones included.
  int64_t steps_done() const { return position_.step; }

  /// One training step on the next cases. Throws OutOfBudget, ddl::CommError.
  StepOutcome step(const StepRequests& own = {});
  /// The metric on the held-out cases, each measured by one rank; the mean on every rank.
  double validate();

  Session& session() { return *session_; }
  Task& task() { return *task_; }
  const kfac::Kfac* kfac() const { return kfac_ ? &*kfac_ : nullptr; }
  const LossScaler* loss_scaler() const { return scaler_ ? &*scaler_ : nullptr; }
  int64_t parameters() const;
  int64_t gradient_bytes() const { return gradient_bytes_; }
  /// Within allreduces of gradients, of all steps; and of that, what steps waited for.
  double gradient_seconds() const;
  double exposed_gradient_seconds() const;
  const ddl::GradientAllreduce* gradient_allreduce() const { return overlapped_ ? &*overlapped_ : nullptr; }

 private:
  using Cases = std::vector<Batch>;

  /// The cases of each micro-batch of the next step, in host memory.
  std::vector<Cases> next_cases();
  /// Those cases on the device.
  Batch to_device(const Cases& cases) const;
  /// Forward and backward of a micro-batch, which may be the step's last; its share of the loss.
  at::Tensor learn(const Cases& cases, bool last);
  double measure(const Cases& cases);
  /// Averages gradients, buffers and the loss over the ranks, and joins their requests. Returns the latter two.
  std::pair<double, StepRequests> average(const at::Tensor& loss, const StepRequests& own);
  /// The gradients that there are.
  std::vector<at::Tensor> gradients() const;
  /// Preconditions, clips and takes the optimizer's step; nothing where gradients overflowed, and then returns false.
  bool update();
  /// All that the next step depends on, but the generators.
  std::vector<StateTensor> state();

  const RunContext& context_;
  const c10::Device device_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<Task> task_;
  std::unique_ptr<Optimizer> optimizer_;
  std::optional<kfac::Kfac> kfac_;
  std::optional<LossScaler> scaler_;
  std::optional<ddl::GradientAllreduce> overlapped_;
  Sampler sampler_;
  LrSchedule lr_;
  RunPosition position_;
  int64_t gradient_bytes_ = 0;
  double after_backward_seconds_ = 0;  ///< within allreduces
};

}  // namespace spillway
