#include "runtime/dry_runs/simulated_workers.h"

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "core/bytes.h"
#include "core/error.h"
#include "ddl/allreduce/tuned_allreduce.h"
#include "ddl/comm/busy.h"
#include "ddl/comm/collectives.h"
#include "ddl/comm/communicator.h"
#include "runtime/dry_runs/make_plan.h"

namespace spillway::runtime {
namespace {

/// Returns the profile of this machine with the links that were measured, and the levels that these join.
PlannedCluster cluster_of(const ddl::CommunicatorHandle& comm, const std::filesystem::path& folder) {
  const auto machine = std::make_shared<MachineTimes>(folder);
  DeviceProfile profile = find_profile("cpu", *machine);
  ClusterShape shape{.levels = comm.communicator->levels()};
  for (int level = 0; level < shape.levels.count(); ++level) shape.links.push_back(level);
  if (comm.allreduce->costs()) profile.network = *comm.allreduce->costs();
  return {std::move(profile), std::move(shape), machine};
}

/// Returns the place of the best choice among `choices`, and the plan's reason.
std::pair<int64_t, std::string> best_of(const std::vector<PlanChoice>& choices, const TrainOptions& options,
                                        int64_t budget_bytes, PlannedCluster cluster) {
  RunPlanner planner = make_planner(options, cluster);
  const RunPlan plan = planner.plan(budget_bytes);
  const auto same = [&](const PlanChoice& choice) { return describe(choice) == describe(plan.best().choice); };
  return {std::find_if(choices.begin(), choices.end(), same) - choices.begin(), plan.reason()};
}

}  // namespace

GradWorkerChoice SimulatedWorkers::choose(const TrainOptions& options, int64_t budget_bytes) {
  ddl::Communicator& ranks = *comm_->communicator;
  const auto choices = plan_choices(options.kfac.preconditioner, options.kfac.choose_grad_worker_frac, ranks.size());
  std::pair<int64_t, std::string> best{0, ""};
  {
    const ddl::Busy busy(&ranks);  // measuring may take long, and the other ranks must not give this one up
    ddl::check_together(ranks, [&] {
      if (ranks.rank() == 0) best = best_of(choices, options, budget_bytes, cluster_of(*comm_, folder_));
    });
  }
  ddl::broadcast(ranks, std::as_writable_bytes(std::span(&best.first, 1)), 0);
  const PlanChoice& choice = choices.at(best.first);
  const std::string budget = budget_bytes == kUnlimitedBytes ? "no budget" : "budget " + format_bytes(budget_bytes);
  return {choice.workers.strategy, choice.workers.grad_worker_frac, str(budget, "; ", best.second)};
}

}  // namespace spillway::runtime
