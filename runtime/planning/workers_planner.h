/// The choice of K-FAC's distribution by a plan.
#pragma once
#include <cstdint>

#include "runtime/planning/grad_worker_choice.h"

namespace spillway {
struct TrainOptions;
}

namespace spillway::runtime {

/// Chooses how K-FAC is distributed over the ranks of a run. Called by every rank together; all get the same choice.
class WorkersPlanner {
 public:
  virtual ~WorkersPlanner() = default;
  /// Returns the fastest of the options' choices that the budget can run.
  virtual GradWorkerChoice choose(const TrainOptions& options, int64_t budget_bytes) = 0;
};

}  // namespace spillway::runtime
