#include "runtime/dry_runs/simulated_workers.h"

#include <span>
#include <string>
#include <type_traits>
#include <utility>

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

}  // namespace

GradWorkerChoice SimulatedWorkers::choose(const TrainOptions& options, int64_t budget_bytes) {
  ddl::Communicator& ranks = *comm_->communicator;
  PlanChoice best;
  std::string reason;
  {
    const ddl::Busy busy(&ranks);  // measuring may take long, and the other ranks must not give this one up
    ddl::check_together(ranks, [&] {
      if (ranks.rank() != 0) return;
      PlannedCluster cluster = cluster_of(*comm_, folder_);
      const RunPlan plan = make_planner(options, cluster).plan(budget_bytes);
      best = plan.best().choice;
      reason = plan.reason();
    });
  }
  static_assert(std::is_trivially_copyable_v<PlanChoice>);
  ddl::broadcast(ranks, std::as_writable_bytes(std::span(&best, 1)), 0);
  return {best.workers.strategy, best.workers.grad_worker_frac,
          str("budget ", format_bytes(budget_bytes), "; ", reason)};
}

}  // namespace spillway::runtime
