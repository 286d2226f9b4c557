#include "benchmarks/reproduce/published_runs.h"

#include "core/bytes.h"
#include "core/error.h"
#include "runtime/dry_runs/dry_steps.h"

namespace spillway::runtime {

DeviceProfile v100_with_nvlink() {
  DeviceProfile profile = built_in_profile("v100");
  profile.copies.out_bytes_per_second = profile.copies.in_bytes_per_second = 75e9;
  profile.host_bytes_per_second = 340e9;
  return profile;
}

PlannedCluster v100s(std::string_view shape, int world) {
  return {v100_with_nvlink(), ClusterShape::parse(shape, world), nullptr};
}

TrainOptions volume(int64_t edge) {
  TrainOptions options;
  options.model.name = "unet3d";
  options.model.filters = 48;
  options.data.source = str("synthetic:", edge);
  return options;
}

TrainOptions resnet50() {
  TrainOptions options;
  options.model.name = "resnet50";
  options.data.source = "synthetic:224";
  options.data.batch = 32;
  options.optimizer.kind = OptimizerKind::sgd;
  return options;
}

Forecast unlimited(PlannedCluster& cluster, const TrainOptions& options, const kfac::StrategyChoice& workers) {
  swap::ScheduleInputs inputs = cluster.schedule_inputs(options);
  inputs.budget_bytes = kUnlimitedBytes;
  return forecast(cluster.steps(options, preconditioned_layers(options), {.workers = workers}), inputs);
}

}  // namespace spillway::runtime
