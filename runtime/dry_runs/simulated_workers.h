/// The choice of K-FAC's distribution by dry runs on this machine's ranks.
#pragma once
#include <filesystem>
#include <utility>

#include "ddl/torch/comm.h"
#include "runtime/planning/workers_planner.h"

namespace spillway::runtime {

/// Weighs every distribution by dry runs (RunPlanner), with the links' measured costs and the times of this machine's
/// kernels. Rank 0 plans while the others wait; kernels that were never measured are measured first.
class SimulatedWorkers final : public WorkersPlanner {
 public:
  /// `folder` is where times of kernels are remembered (MachineTimes).
  SimulatedWorkers(ddl::Comm comm, std::filesystem::path folder) : comm_(std::move(comm)), folder_(std::move(folder)) {}
  /// Throws as make_dry_context() does, on every rank; ddl::CommError.
  GradWorkerChoice choose(const TrainOptions& options, int64_t budget_bytes) override;

 private:
  const ddl::Comm comm_;
  const std::filesystem::path folder_;
};

}  // namespace spillway::runtime
