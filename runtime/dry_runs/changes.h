/// Changes to a run that save memory or time, and change bits of its result.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/dry_runs/planned_cluster.h"
#include "runtime/options/train_options.h"
#include "runtime/planning/plan_report.h"

namespace spillway::runtime {

/// One change to a run's options.
struct Change {
  std::string name;      ///< the name for `--allow`
  std::string flags;     ///< flags that make the same change: `--conv-factors separable`
  TrainOptions options;  ///< the options with the change
};

/// Returns the names of all changes:
///   separable  factors of convolutions are Kronecker products of channels and offsets
///   storage    factors and eigenbases are kept in bfloat16
///   dp         each rank's factors are of its own batch alone (DP-KFAC)
///   amp        forward and loss under autocast to bfloat16
///   batch      micro-batches of half the size, twice as many of them in a step
///   split      operators run in windows of a quarter of the size
std::vector<std::string> change_names();

/// Returns the changes that can be made to a run of `world` ranks, in the order of change_names().
std::vector<Change> changes(const TrainOptions& options, int64_t world);

/// Plans each change alone, under the same budget in bytes. Cost: a dry run each.
std::vector<Proposal> propose(const TrainOptions& options, int64_t budget_bytes, PlannedCluster& cluster);

/// The most changes that are taken.
inline constexpr size_t kMaxChanges = 16;

/// The changes that a run takes.
struct TakenChanges {
  TrainOptions options;              ///< with the changes, and with the budget in bytes
  std::vector<Proposal> taken = {};  ///< in order, each together with those before it
};

/// Takes changes out of `allowed` one after another, each time the one whose plan is the best, under the options'
/// budget. A percentage is of the peak without changes. A change must make the run feasible, or lower its floor or its
/// time by 2 %. `batch` and `split` may be taken several times. Throws BadRequest where a name is none
/// of change_names(), or where there is no budget.
TakenChanges take_changes(const TrainOptions& options, const std::vector<std::string>& allowed,
                          PlannedCluster& cluster);

/// Makes these changes, by their names and in their order; their plans are left empty. Throws BadRequest where one
/// cannot be made.
TakenChanges make_changes(const TrainOptions& options, const std::vector<std::string>& names, int64_t world);

}  // namespace spillway::runtime
