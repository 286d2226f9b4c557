/// The steps of a run, told by dry runs.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "ddl/torch/comm.h"
#include "kfac/plan/layer_shape.h"
#include "kfac/plan/options.h"
#include "runtime/options/train_options.h"
#include "runtime/planning/rank_steps.h"
#include "swap/shapes/shape_kernels.h"

namespace spillway::runtime {

/// Runs every kind of step of one rank once its state is there, and a validation, without computing values. Strategy
/// and grad_worker_frac are the options' own. K-FAC's intervals are shortened for it (kfac/plan/step_work.h); the
/// shares of the kinds are those of the options. Throws as make_dry_context() does.
RankSteps dry_steps(const TrainOptions& options, ddl::Comm comm, std::shared_ptr<swap::KernelTimes> times);

/// Returns the steps of the first rank of each stage of a model that is cut over `ranks`, as dry_steps() does. They
/// wait for messages as long as the simulation of the program with these stages says (pipe/simulate.h). Where K-FAC's
/// refreshes fill bubbles, these are the steps of a cycle that the same plan fills as in a run
/// (runtime/pipeline/kfac_in_bubbles.h); with an interval of more than 8 steps refreshes count after the passes,
/// within one step. `comm_of` makes a rank's communicator.
std::vector<RankSteps> dry_pipeline_steps(const TrainOptions& options, int world,
                                          const std::function<ddl::Comm(int rank)>& comm_of,
                                          const std::shared_ptr<swap::KernelTimes>& times);

/// Returns the shapes of the layers that K-FAC preconditions with these options; none without K-FAC. Cost: the model is
/// made, with its weights.
std::vector<kfac::LayerShape> preconditioned_layers(const TrainOptions& options);

/// Returns the ranks whose steps stand for those of all ranks of the communicator's world: for each way in which
/// K-FAC's work and state for these layers fall to ranks, as far as they differ, the first such rank. When there are
/// more than `most`, the first one counts, and those with the most state, operations of decompositions, and operations
/// of preconditioning. Without layers this is rank 0 alone.
std::vector<int> ranks_that_differ(const std::vector<kfac::LayerShape>& layers, const kfac::KfacOptions& options,
                                   int world, size_t most = 3);

}  // namespace spillway::runtime
