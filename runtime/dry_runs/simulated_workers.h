/// Plans by dry runs on this machine's ranks, for a training that is about to begin.
#pragma once
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "ddl/torch/comm.h"
#include "runtime/dry_runs/changes.h"
#include "runtime/planning/grad_worker_choice.h"

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

/// Chooses the schedule of a model that is cut over this machine's ranks, and whether its stages recompute, under the
/// options' budget in bytes, by dry runs of all schedules that change no bit. Sets them in `options`, and returns why.
/// Collective. Throws as SimulatedWorkers::choose().
std::string choose_pipeline(TrainOptions& options, const ddl::Comm& comm, const std::filesystem::path& folder);

/// Takes allowed changes for this machine's ranks, by plans of rank 0. Ranks other than 0 learn the names and flags of
/// the changes, and not their plans. `comm` is null where one rank runs alone. Collective. Throws BadRequest on every
/// rank; ddl::CommError.
TakenChanges take_changes(const TrainOptions& options, const std::vector<std::string>& allowed, const ddl::Comm& comm,
                          const std::filesystem::path& folder);

}  // namespace spillway::runtime
