/// K-FAC's refreshes in the waits of a pipeline's ranks.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "kfac/kfac.h"
#include "pipe/fill.h"
#include "runtime/pipeline/pipeline.h"

namespace spillway::runtime {

/// The seconds of a rank's own work, in means over the steps of a cycle.
struct CycleSeconds {
  std::vector<pipe::StageSeconds> stages;  ///< by stage of the model; zeros for other ranks' stages
  double update = 0;                       ///< time that follows a step's passes, refreshes included
};

/// The work of each rank's Kfac, put into the steps of a cycle. Ranks do all work after their passes until every piece
/// has been timed twice, because the first times are long. Then all of them make the same plan from all times, and
/// follow it to the end. Where no plan is shorter than a cycle that does the work after the passes, they keep to that.
/// The plan decides when work is done, never what a step computes.
///
/// Gradients of weights that the schedule has apart from those of inputs are placed anew, beside K-FAC's work. Under
/// chimera two ranks that wait at other times share their layers, so averages come after each step's passes, and new
/// inverses are shared when they are due: work that ranks do together is never in waits.
class RefreshInWaits {
 public:
  /// `kfac` is this rank's, with a curvature_delay. It waits from here on. `world` are all ranks of the run.
  RefreshInWaits(kfac::Kfac& kfac, std::shared_ptr<const Pipeline> pipeline, ddl::Comm world);

  /// Returns the steps of a cycle.
  int64_t cycle() const { return cycle_; }
  /// Returns the items and the extras of this rank in a step, in order; null before there is a plan.
  const std::vector<pipe::FilledItem>* items_of(int64_t step) const;
  /// Does the work of an extra of items_of(step), unless it is done already.
  void run(const pipe::FilledItem& extra, int64_t step);
  /// Does what the ranks that have the same weights do together after the passes of a step with a plan.
  void run_together(int64_t step);
  /// Makes the plan where every piece of every rank has been timed twice. Call it after the last step of each cycle
  /// without a plan. Collective over the world. Throws CommError.
  void plan(const CycleSeconds& seconds);
  /// Returns the times of this rank, for plan_from().
  std::string times_of_rank(const CycleSeconds& seconds) const;
  /// Makes the plan from the times of ranks, one or more of each place. Returns false where a piece has not been timed.
  bool plan_from(const std::vector<std::string>& times);

  /// Returns the plan of all ranks; empty before there is one.
  const pipe::Filled& filled() const { return filled_; }
  /// False where the plan leaves work after the passes of its step, because a cycle is shorter so.
  bool fills_waits() const { return fills_waits_; }
  const std::vector<pipe::Extra>& extras() const { return extras_; }
  /// Returns the kind of an extra's work.
  kfac::RefreshWork::What kind_of(int extra) const { return kinds_[extra]; }
  /// Returns the seconds that this rank's extras took so far, by kind.
  const std::array<double, 4>& seconds() const { return seconds_; }

 private:
  /// A piece of work of this rank.
  struct Piece {
    int64_t taken_step;  // of the cycle
    size_t index;
  };

  bool fills(const kfac::RefreshWork& work) const;
  bool needs_others(int64_t taken, size_t index) const;
  std::vector<Piece> pieces() const;
  PlacedStage stage_of(const kfac::RefreshWork& work) const;
  /// Returns the extras of a rank from times_of_rank(), numbered from 0.
  std::vector<pipe::Extra> extras_of(const nlohmann::json& rank) const;
  /// Takes the extras and the costs of ranks from their times_of_rank().
  void take(const std::vector<nlohmann::json>& ranks, pipe::Costs& costs);

  kfac::Kfac& kfac_;
  const std::shared_ptr<const Pipeline> pipeline_;
  const ddl::Comm world_;
  const int64_t cycle_;
  const int64_t micro_batches_;  // of each stage on one rank
  const bool waits_together_;    // ranks with the same weights have the same waits
  std::vector<Piece> own_;       // in the order of extras_
  int first_own_ = 0;            // number of the first one among extras_
  std::vector<pipe::Extra> extras_;
  std::vector<kfac::RefreshWork::What> kinds_;  // of extras_
  std::array<double, 4> seconds_{};
  pipe::Filled filled_;
  bool fills_waits_ = true;
  int timed_cycles_ = 0;
};

/// Returns `from here on K-FAC's work is done while ranks wait: …`, or why it is not, of one that has a plan.
std::string describe(const RefreshInWaits& in_waits);

}  // namespace spillway::runtime
