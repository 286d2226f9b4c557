/// The machines that a plan is for, and the dry runs on them.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "ddl/torch/comm.h"
#include "kfac/plan/layer_shape.h"
#include "runtime/dry_runs/machine_times.h"
#include "runtime/options/train_options.h"
#include "runtime/planning/device_profile.h"
#include "runtime/planning/rank_steps.h"
#include "runtime/planning/run_plan.h"

namespace spillway::runtime {

/// A world of ranks on devices of one profile. Used by one thread at a time.
class PlannedCluster {
 public:
  /// `machine` tells the times where the profile is this machine's.
  PlannedCluster(DeviceProfile profile, ClusterShape shape, std::shared_ptr<MachineTimes> machine);

  int world() const { return shape_.levels.size(); }
  const DeviceProfile& profile() const { return profile_; }
  const ddl::Levels& levels() const { return shape_.levels; }
  /// Returns the inputs of schedules on these devices, without a budget.
  swap::ScheduleInputs schedule_inputs(const TrainOptions& options) const;

  /// Makes dry runs of a few ranks, which represent all ranks, with K-FAC distributed as `choice` says. Returns their
  /// steps. Where times are this machine's, calls that were never measured are measured first. `layers` are those of
  /// preconditioned_layers(). Throws as make_dry_context() does.
  std::vector<RankSteps> steps(const TrainOptions& options, const std::vector<kfac::LayerShape>& layers,
                               const PlanChoice& choice);
  /// Returns the smallest budget that these options can run. Cost: a dry run of rank 0.
  int64_t floor_bytes(const TrainOptions& options, const PlanChoice& choice);

 private:
  /// Returns true where copies share no cores with compute, as those of a GPU.
  bool is_of_gpus() const;
  /// Returns the options of a rank that is distributed as `choice` says.
  TrainOptions options_of(const TrainOptions& given, const PlanChoice& choice) const;
  ddl::Comm comm_of(int rank) const;
  /// Runs the steps of these ranks dry; of a pipeline, those of the first rank of each stage.
  std::vector<RankSteps> steps_of(const TrainOptions& options, const std::vector<int>& ranks);

  DeviceProfile profile_;
  const ClusterShape shape_;
  const std::shared_ptr<MachineTimes> machine_;
  std::shared_ptr<swap::KernelTimes> times_;
};

/// Returns the threads that each rank of a host like this one has: an equal share of its cores. LibTorch must use as
/// many (at::set_num_threads()) when this machine's times are measured.
int threads_of_rank(const ClusterShape& shape);

/// Reads the profile that `text` names: `cpu` for this machine, a built-in one, or a file. Throws BadRequest.
DeviceProfile find_profile(const std::string& text, MachineTimes& machine);

}  // namespace spillway::runtime
