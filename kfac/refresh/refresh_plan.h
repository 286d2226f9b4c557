/// The layers whose curvature each step refreshes, and the pieces of that work.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kfac/plan/factor_traffic.h"
#include "kfac/plan/refresh_work.h"
#include "kfac/refresh/setup.h"

namespace spillway::kfac {

/// Layers whose new factors are averaged together.
struct AverageGroup {
  std::vector<size_t> layers;
  std::optional<size_t> bucket;  ///< number of the bucket in which they travel, if they do
};

/// Factors of one rank that are renewed together.
using RenewalGroup = std::vector<FactorId>;

/// The plan of a Kfac's refreshes. A set is a number of UpdateCycle::sets(). A step is late when its statistics are
/// taken in while later steps run (KfacOptions::curvature_delay). The very first step never is.
class RefreshPlan {
 public:
  explicit RefreshPlan(const Setup& setup);

  bool is_late(int64_t step) const { return setup_.options.curvature_delay > 0 && step > 0; }
  /// Returns the work of the step that `done` are before, for the layers of this stage.
  StepWork work(const KfacCounters& done) const { return work(done, setup_.cycle); }
  /// Returns that work for the layers of all stages.
  StepWork work_of_model(const KfacCounters& done) const { return work(done, setup_.cycle_of_model); }
  /// Returns true when the layer, after so many steps, has a renewed inverse for later ones.
  bool renews(size_t layer, int64_t steps) const;

  size_t set_of(int64_t step) const { return setup_.cycle.set_of(step); }
  const std::vector<size_t>& layers(size_t set) const { return setup_.cycle.sets()[set]; }
  const std::vector<FactorBucket>& buckets(size_t set) const { return sets_[set].buckets; }
  const AverageGroup& average(size_t set, int64_t index) const { return sets_[set].averages.at(index); }
  const RenewalGroup& renewal(size_t set, int64_t index) const { return sets_[set].renewals.at(index); }
  /// Returns the number of pieces in which a step's refresh renews the group.
  int64_t pieces_of(const RenewalGroup& group, bool is_late) const;

  /// Returns the pieces of the refresh of a step's layers, in an order that is right, where statistics of so many
  /// micro-batches wait. Of a late step, ranks with the same layers get as many pieces of each kind, so that they agree
  /// on their order.
  std::vector<RefreshWork> pieces(int64_t step, int64_t micro_batches) const;

 private:
  /// The groups of a set.
  struct Groups {
    std::vector<FactorBucket> buckets;
    std::vector<AverageGroup> averages;
    std::vector<RenewalGroup> renewals;  ///< groups that this rank renews
    std::vector<int64_t> late_pieces;    ///< by number of a group: its pieces on the rank that has most
  };

  StepWork work(const KfacCounters& done, const UpdateCycle& cycle) const;
  std::vector<AverageGroup> averages_of(size_t set, const std::vector<FactorBucket>& buckets) const;
  std::vector<RenewalGroup> renewals_of(size_t set, int64_t rank) const;
  std::vector<int64_t> late_pieces_of(size_t set) const;
  void add_renewals(size_t set, bool is_late, std::vector<RefreshWork>& pieces) const;

  const Setup& setup_;
  std::vector<Groups> sets_;
  std::vector<std::string> late_kinds_;  ///< by step of the cycle
};

}  // namespace spillway::kfac
