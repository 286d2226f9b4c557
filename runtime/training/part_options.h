/// The options of a run's Session, of its gradients and of its K-FAC, which follow from the run's own.
#pragma once
#include <cstdint>

#include "ddl/torch/gradient_allreduce.h"
#include "kfac/kfac.h"
#include "runtime/interruption/interrupter.h"
#include "runtime/options/lr_schedule.h"
#include "runtime/recording/step_recorder.h"
#include "runtime/training/run_context.h"
#include "swap/session.h"

namespace spillway::runtime {

/// Returns the options of a Session under a budget. The options' host budget must be in bytes. `interrupter` observes
/// its operators, and `recorder`, unless it is null, its copies and its disk; both must outlive the Session.
SessionOptions session_options(const RunContext& context, int64_t budget_bytes, Interrupter& interrupter,
                               StepRecorder* recorder);

/// Returns the options for sending gradients.
ddl::GradientOptions gradient_options(const TrainOptions& options);

/// Returns K-FAC's options. Its decays are at the epochs of `lr`. Throws BadRequest where an interval decays to less
/// than a step.
kfac::KfacOptions kfac_options(const TrainOptions& options, const LrSchedule& lr, double grad_worker_frac);

/// Returns what the K-FAC of a stage must know of the other stages; nothing where every rank has the whole model.
kfac::ModelStages stages_of(const RunContext& context);

}  // namespace spillway::runtime
