#include "runtime/dry_runs/simulated_workers.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/bytes.h"
#include "core/error.h"
#include "ddl/allreduce/tuned_allreduce.h"
#include "ddl/comm/busy.h"
#include "ddl/comm/collectives.h"
#include "ddl/comm/communicator.h"
#include "runtime/dry_runs/make_planner.h"
#include "runtime/training/run_context.h"

namespace spillway::runtime {
namespace {

/// Returns the ranks of `comm`, or one rank alone where it is null, on machines like this one. Links that were measured
/// have their measured costs.
PlannedCluster cluster_of(const ddl::Comm& comm, const std::filesystem::path& folder) {
  const auto machine = std::make_shared<MachineTimes>(folder);
  DeviceProfile profile = find_profile("cpu", *machine);
  ClusterShape shape;
  if (comm) {
    shape.levels = comm->communicator->levels();
    // The costs are by the communicator's own levels, as the communicator's plans are.
    if (const auto& costs = comm->allreduce->costs()) {
      profile.network = *costs;
      profile.network_is_measured = true;
    }
    shape.links.resize(shape.levels.count());
    std::iota(shape.links.begin(), shape.links.end(), size_t{0});
    const std::vector<int>& hosts = comm->communicator->hosts();
    for (int host : hosts)
      shape.ranks_of_host = std::max<int>(shape.ranks_of_host, std::count(hosts.begin(), hosts.end(), host));
  }
  return {std::move(profile), std::move(shape), machine};
}

/// Lets rank 0 plan while the others wait. What it throws, every rank throws. Measuring kernels may take long, and the
/// other ranks must not give rank 0 up.
template <class Plan>
void plan_at_rank_0(ddl::Communicator& ranks, const Plan& plan) {
  const ddl::Busy busy(&ranks);
  ddl::check_together(ranks, [&] {
    if (ranks.rank() == 0) plan();
  });
}

}  // namespace

GradWorkerChoice SimulatedWorkers::choose(const TrainOptions& options, int64_t budget_bytes) {
  ddl::Communicator& ranks = *comm_->communicator;
  const int64_t budget = -max_over_ranks(comm_, -budget_bytes);  // what every rank can run
  PlanChoice best;
  std::string reason;
  plan_at_rank_0(ranks, [&] {
    PlannedCluster cluster = cluster_of(comm_, folder_);
    RunPlanner planner = make_planner(options, cluster);
    const RunPlan plan = planner.plan(budget);
    const auto [smaller, larger] = planner.neighbors(budget);
    best = plan.best().choice;
    reason = str(plan.reason(), "; ", under_another_budget(smaller, plan), "; ", under_another_budget(larger, plan));
  });
  static_assert(std::is_trivially_copyable_v<PlanChoice>);
  ddl::broadcast(ranks, std::as_writable_bytes(std::span(&best, 1)), 0);
  return {best.workers.strategy, best.workers.grad_worker_frac, str("budget ", format_bytes(budget), "; ", reason),
          best.gradient_buffer_bytes};
}

std::string choose_pipeline(TrainOptions& options, const ddl::Comm& comm, const std::filesystem::path& folder) {
  ddl::Communicator& ranks = *comm->communicator;
  const int64_t budget = -max_over_ranks(comm, -options.memory.budget.bytes);
  PipelineChoice best;
  std::string reason;
  plan_at_rank_0(ranks, [&] {
    PlannedCluster cluster = cluster_of(comm, folder);
    const RunPlan plan = make_planner(options, cluster).plan(budget);
    best = *plan.best().choice.pipeline;
    reason = str("the schedule for a budget of ", format_bytes(budget), " is ", plan.reason());
  });
  ddl::broadcast(ranks, std::as_writable_bytes(std::span(&best, 1)), 0);
  options.pipeline.schedule = best.schedule;
  options.pipeline.recompute = best.recompute;
  return reason;
}

TakenChanges take_changes(const TrainOptions& options, const std::vector<std::string>& allowed, const ddl::Comm& comm,
                          const std::filesystem::path& folder) {
  TakenChanges result;
  const auto plan = [&] {
    PlannedCluster cluster = cluster_of(comm, folder);
    result = take_changes(options, allowed, cluster);
  };
  if (!comm) {
    plan();
    return result;
  }
  ddl::Communicator& ranks = *comm->communicator;
  plan_at_rank_0(ranks, plan);
  const std::vector<std::string> names = change_names();
  std::array<int64_t, 1 + kMaxChanges> said;  // the budget, and the places of the changes among the names
  said.fill(-1);
  said[0] = result.options.memory.budget.bytes;
  for (size_t i = 0; i < result.taken.size(); ++i)
    said[1 + i] = std::find(names.begin(), names.end(), result.taken[i].name) - names.begin();
  ddl::broadcast(ranks, std::as_writable_bytes(std::span(said)), 0);
  if (ranks.rank() == 0) return result;
  std::vector<std::string> taken;
  for (size_t i = 1; i < said.size() && said[i] >= 0; ++i) taken.push_back(names[said[i]]);
  result = make_changes(options, taken, ranks.size());
  result.options.memory.budget = {.kind = BudgetRequest::Kind::bytes, .bytes = said[0]};
  return result;
}

}  // namespace spillway::runtime
