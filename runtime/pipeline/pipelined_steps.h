/// The steps of a run whose model is cut over ranks.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/clock.h"
#include "runtime/pipeline/kfac_in_bubbles.h"
#include "runtime/pipeline/pipeline_executor.h"
#include "runtime/pipeline/step_record.h"

namespace spillway::runtime {

/// The steps of this rank's stages: K-FAC's work in their bubbles, and their times. Calls are collective over the world
/// where a plan of the bubbles is due.
class PipelinedSteps {
 public:
  /// `model`, which outlives this object, is this rank's part of the model. `now` tells the time of its items.
  PipelinedSteps(std::shared_ptr<const Pipeline> pipeline, PipelineExecutor& model, Now now);

  /// Makes K-FAC's work fill bubbles, once its pieces have been timed. `kfac` outlives this object, and has a
  /// curvature_delay. `world` are all ranks of the run, which begins with step `first_step`. A dry run `plans` nothing
  /// by itself.
  void fill_waits(kfac::Kfac& kfac, const ddl::Comm& world, int64_t first_step, bool plans);

  /// Begins a step, before which the bubbles are planned again where that is due. Returns the kind of the step: `kind`,
  /// or the plan's where it has one.
  std::string begin(int64_t step, std::string kind);
  /// Runs the passes of the step. Returns what TrainableModel::learn() does.
  at::Tensor learn(const StepWork& work);
  /// Ends the step. The first plan is made after the last one of a cycle; `steps_done` are those of the run.
  void end(const StepMoments& moments, int64_t steps_done);

  /// Returns the value of the rank that has one on all ranks of this copy of the model. With two directions it is the
  /// sum of both. Collective over the copy. Throws CommError.
  double on_all_ranks(std::optional<double> value) const;

  PipelineExecutor& model() { return model_; }
  /// Returns K-FAC's work in bubbles; null where there is none.
  KfacInBubbles* in_bubbles() { return in_bubbles_ ? &*in_bubbles_ : nullptr; }
  /// Returns the mean seconds of this rank's own work in the steps since the last call, one or more.
  CycleSeconds take_cycle_seconds();
  const StepTimes& times() const { return times_; }

 private:
  const std::shared_ptr<const Pipeline> pipeline_;
  PipelineExecutor& model_;
  const Now now_;
  std::optional<KfacInBubbles> in_bubbles_;
  bool plans_ = false;         ///< it plans the bubbles by itself
  double passes_end_ = 0;      ///< the moment after the passes of the last step
  double update_seconds_ = 0;  ///< after the passes of steps, since they were taken
  int64_t untaken_steps_ = 0;  ///< steps in that
  StepTimes times_;
};

}  // namespace spillway::runtime
