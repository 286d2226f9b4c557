/// The context that the runs of a request share: its options, the data and the ranks.
#pragma once
#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ddl/torch/comm.h"
#include "kfac/plan/layer_shape.h"
#include "runtime/data/dataset.h"
#include "runtime/options/train_options.h"
#include "runtime/training/checkpoint.h"

namespace spillway {
class TrainListener;
struct TrainRequests;
struct TrainResult;
}  // namespace spillway

namespace spillway::swap {
class KernelTimes;
class OperatorKernels;
}  // namespace spillway::swap

namespace spillway::runtime {

struct Pipeline;
class Task;
struct TaskOptions;
class PipelineClock;
class WorkersPlanner;

/// The context that several runs share. `comm` is null in a world of one.
struct RunContext {
  TrainOptions options;
  std::shared_ptr<const Dataset> data;
  Split split;
  ddl::Comm comm = {};
  std::optional<double> counted_kfac_share = {};        ///< CurvaturePlan::time_share, where a plan was chosen
  std::shared_ptr<swap::OperatorKernels> kernels = {};  ///< SessionOptions::kernels
  std::shared_ptr<WorkersPlanner> planner = {};  ///< distributes K-FAC under a budget; null: choose_grad_worker_frac()
  RunPosition start = {};  ///< position of the checkpoint that the run goes on from; with `resume` alone
  /// False where the checkpoint's run renewed K-FAC's layers, or used their curvature, in other steps than this run.
  bool keeps_refresh = true;
  std::shared_ptr<PipelineClock> clock = {};      ///< clock of a pipeline's items; null: a steady one
  std::shared_ptr<const Pipeline> pipeline = {};  ///< null: every rank has the whole model
  /// The layers of the whole model that K-FAC preconditions, in its order; empty where the model is not cut.
  std::vector<kfac::LayerShape> preconditioned_layers = {};
  int rank() const { return ddl::rank_of(comm); }
  int world() const { return ddl::size_of(comm); }
  /// Returns the number of copies of the model, which draw different cases.
  int copies() const { return world() / options.pipeline.ranks; }
  /// Returns the copy that this rank has, or has stages of.
  int copy() const { return rank() % copies(); }
  /// Returns the number of ranks that have the same weights.
  int holders() const { return copies() * options.pipeline.holders(); }
  /// Returns the ranks that have the same weights as this one; null where this rank is the only one.
  const ddl::Comm& same_weights() const;
};

/// Returns the module of a task that this rank trains: all of it, or its stages of it.
std::shared_ptr<torch::nn::Module> own_module(const RunContext& context, Task& task);

/// Returns the device of the tensors of a run with these options.
c10::Device options_device(const TrainOptions& options);

/// Returns the model's options for these training options (with_model_defaults()) and this data.
TaskOptions task_options(const TrainOptions& options, const Dataset& data);

/// Returns K-FAC's options for the module that this rank trains: layer_curvature is that of its layers.
kfac::KfacOptions own_kfac_options(const RunContext& context, const torch::nn::Module& own);

/// Returns the number of training cases that all ranks together draw in a step.
int64_t cases_per_step(const RunContext& context);

/// Returns the number of steps of this run, rounded up, that draw `cases` cases.
int64_t steps_for(const RunContext& context, int64_t cases);

/// Returns the number of steps that see every case at least once.
int64_t steps_per_epoch(const RunContext& context);

/// Returns the maximum of `value` over ranks. Collective.
int64_t max_over_ranks(const ddl::Comm& comm, int64_t value);

/// Returns the step that the run ends after, counted from the very first. Throws BadRequest where nothing is left.
int64_t last_step(const RunContext& context);

/// Sets KfacOptions::layer_curvature of a run with K-FAC. A run that goes on from a checkpoint has the checkpoint's,
/// unless a pipeline's late refreshes made that plan or make this run's: those follow from each run's own options. Else
/// plan_curvature() chooses it where KfacTrainingOptions::time_share asks for that. The positions are counted in one
/// forward pass of at most two cases, on a model of its own and without a Session. The run's random generators and its
/// sampler stay as they were. Collective. Throws BadRequest where options do not go together.
void choose_curvature(RunContext& context);

/// Sets the steps in which K-FAC's layers are renewed, and used later, where the model is cut: each layer every
/// `interval` steps, and `delay` steps later, 0 < delay < interval. They follow from the layers' shapes, the interval
/// and the delay alone, so that no bit depends on the cut or on a measured time.
void set_refresh(RunContext& context, int64_t interval, int64_t delay);

/// Opens the data of `options` and makes the context that several runs share; with Placement::measured rank 0 measures.
/// Collective. Throws BadRequest.
RunContext make_context(const TrainOptions& options, ddl::Comm comm);

/// Makes the context of runs that compute no values (swap/shapes/shape_kernels.h), on the CPU. Volumes are blank, so
/// their size is limited by addresses alone. Layers are placed without measuring. `comm` is of a simulated world
/// (ddl/comm/simulated_world.h), or null. `times` tells how long kernels take; nullptr: as long as the dry run. Throws
/// BadRequest.
RunContext make_dry_context(const TrainOptions& options, ddl::Comm comm = {},
                            std::shared_ptr<swap::KernelTimes> times = nullptr);

/// Trains as train() does, in a context that several runs may share.
TrainResult train_in_context(const RunContext& context, TrainListener& listener, TrainRequests* requests = nullptr);

}  // namespace spillway::runtime
