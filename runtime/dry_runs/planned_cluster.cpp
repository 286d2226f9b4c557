#include "runtime/dry_runs/planned_cluster.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <filesystem>
#include <thread>
#include <utility>

#include "core/error.h"
#include "core/host/memory_limit.h"
#include "core/host/text_file.h"
#include "core/memory/device_memory.h"
#include "ddl/comm/simulated_world.h"
#include "ddl/torch/comm.h"
#include "kfac/refresh/layer_batches.h"
#include "runtime/data/open_dataset.h"
#include "runtime/dry_runs/cluster_times.h"
#include "runtime/dry_runs/dry_steps.h"
#include "runtime/dry_runs/roofline_times.h"

namespace spillway::runtime {
namespace {

/// The effort for each schedule: less than a Session's, because a plan weighs many schedules.
constexpr int32_t kCandidates = 12;
constexpr double kGoodEnough = 1.01;

int cores() {
  return std::max<int>(1, std::thread::hardware_concurrency());
}

DeviceProfile this_machine(MachineTimes& machine) {
  DeviceProfile profile{.name = "cpu", .origin = "measured on this machine", .is_this_machine = true};
  profile.memory_bytes = host_memory_limit().bytes;
  profile.copies.out_bytes_per_second = profile.copies.in_bytes_per_second = machine.copy_rate();
  profile.network.levels = {
      {.latency_seconds = 5e-6, .message_seconds = 1e-6, .bytes_per_second = 5e9, .by_cores = true},
      {.latency_seconds = 30e-6, .message_seconds = 5e-6, .bytes_per_second = 1.2e9}};
  profile.network.reduce_seconds_per_byte = 1e-10;
  return profile;
}

/// Returns the options with synthetic cases for all ranks, of which a tenth is held out.
TrainOptions with_enough_cases(const TrainOptions& given, int64_t world) {
  TrainOptions options = with_model_defaults(given);
  if (synthetic_size(options.data.source) == 0) return options;
  const int64_t together = options.data.batch * world;
  options.data.cases = std::max(options.data.cases, together + together / 9 + 2);
  return options;
}

TrainOptions with_choice(TrainOptions options, const PlanChoice& choice) {
  options.memory.device = "cpu";
  options.kfac.choose_grad_worker_frac = false;
  options.kfac.preconditioner.strategy = choice.workers.strategy;
  options.kfac.preconditioner.grad_worker_frac = choice.workers.grad_worker_frac;
  options.kfac.preconditioner.placement = choice.placement;
  if (choice.gradient_buffer_bytes > 0) options.gradients.buffer_bytes = choice.gradient_buffer_bytes;
  if (choice.pipeline) {
    options.pipeline.schedule = choice.pipeline->schedule;
    options.pipeline.recompute = choice.pipeline->recompute;
  }
  return options;
}

/// Counts the device memory that libraries take.
void add_libraries(int64_t bytes, RankSteps& rank) {
  for (KindOfStep& kind : rank.kinds) kind.trace.add_external(bytes);
  rank.peak_bytes += bytes;
  rank.floor_bytes += bytes;
}

}  // namespace

PlannedCluster::PlannedCluster(DeviceProfile profile, ClusterShape shape, std::shared_ptr<MachineTimes> machine)
    : profile_(std::move(profile)), shape_(std::move(shape)), machine_(std::move(machine)) {
  profile_.copies = shared_copies(profile_, shape_);
  if (!profile_.is_this_machine) {
    times_ = std::make_shared<ClusterTimes>(std::make_shared<RooflineTimes>(profile_.kernels, is_of_gpus()));
    return;
  }
  // Ranks that are more than the cores take turns.
  const int threads = at::get_num_threads();
  const double turns = std::max(1.0, static_cast<double>(shape_.ranks_of_host) * threads / cores());
  times_ = std::make_shared<ClusterTimes>(machine_->kernels(), turns);
  profile_ = in_turns(std::move(profile_), turns);
  const double loss = swap::loss_beside_a_thread(shape_.ranks_of_host, threads, cores());
  profile_.copies.compute_slowdown = loss;
  // Cores move the messages inside a host. Between hosts they mostly wait.
  if (world() == shape_.ranks_of_host) profile_.copies.message_slowdown = loss;
}

int threads_of_rank(const ClusterShape& shape) {
  return std::max(1, cores() / shape.ranks_of_host);
}

swap::ScheduleInputs PlannedCluster::schedule_inputs(const TrainOptions& options) const {
  swap::ScheduleInputs inputs;
  inputs.rates = profile_.copies;
  if (!options.memory.disk.empty() && options.memory.host_budget.kind == BudgetRequest::Kind::bytes)
    inputs.host_budget_bytes = options.memory.host_budget.bytes;
  inputs.small_bytes = DeviceMemory::charge_of(SessionOptions().small_page_bytes);
  if (is_of_gpus()) inputs.costly_bytes = inputs.small_bytes;  // as costly_bytes() of the pager says
  inputs.candidates = kCandidates;
  inputs.good_enough = kGoodEnough;
  return inputs;
}

bool PlannedCluster::is_of_gpus() const {
  return !profile_.is_this_machine && profile_.copies.compute_slowdown == 0;
}

TrainOptions PlannedCluster::options_of(const TrainOptions& given, const PlanChoice& choice) const {
  TrainOptions options = with_choice(with_enough_cases(given, world()), choice);
  options.memory.split_bytes = split_bytes_on(is_of_gpus(), options.memory.split_bytes);
  kfac::KfacOptions& k = options.kfac.preconditioner;
  k.shifted_products = !is_of_gpus();
  k.batch_elements = k.batch_elements.value_or(kfac::default_batch_elements(is_of_gpus() ? at::kCUDA : at::kCPU));
  return options;
}

ddl::Comm PlannedCluster::comm_of(int rank) const {
  if (world() == 1) return {};
  return ddl::make_comm(ddl::simulated_communicator(rank, shape_.levels), costs_of(profile_, shape_));
}

std::vector<RankSteps> PlannedCluster::steps_of(const TrainOptions& options, const std::vector<int>& ranks) {
  std::vector<RankSteps> all;
  if (options.pipeline.ranks > 1)
    all = dry_pipeline_steps(
        options, world(), [this](int rank) { return comm_of(rank); }, times_);
  else
    for (int rank : ranks) all.push_back(dry_steps(options, comm_of(rank), times_));
  for (RankSteps& rank : all) add_libraries(profile_.library_bytes, rank);
  return all;
}

std::vector<RankSteps> PlannedCluster::steps(const TrainOptions& given, const std::vector<kfac::LayerShape>& layers,
                                             const PlanChoice& choice) {
  const TrainOptions options = options_of(given, choice);
  const std::vector<int> ranks = ranks_that_differ(layers, options.kfac.preconditioner, world());
  std::vector<RankSteps> all = steps_of(options, ranks);
  if (!profile_.is_this_machine || machine_->measure_missing() == 0) return all;
  return steps_of(options, ranks);
}

int64_t PlannedCluster::floor_bytes(const TrainOptions& options, const PlanChoice& choice) {
  int64_t floor = 0;
  for (const RankSteps& rank : steps_of(options_of(options, choice), {0})) floor = std::max(floor, rank.floor_bytes);
  return floor;
}

DeviceProfile find_profile(const std::string& text, MachineTimes& machine) {
  if (text == "cpu") return this_machine(machine);
  const auto known = built_in_profiles();
  if (std::find(known.begin(), known.end(), text) != known.end()) return built_in_profile(text);
  if (std::error_code ignored; !std::filesystem::exists(text, ignored))
    throw BadRequest(
        str("--device-profile is '", text, "'; allowed: cpu, h200, h100, a100, v100, or a file that can be read"));
  try {
    DeviceProfile profile = parse_profile(read_text_file(text));
    profile.origin = str("file ", text);
    return profile;
  } catch (const BadRequest& error) {
    throw BadRequest(str("--device-profile ", text, ": ", error.what()));
  }
}

}  // namespace spillway::runtime
