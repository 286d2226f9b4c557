/// K-FAC's refreshes in the bubbles of a pipeline.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kfac/kfac.h"
#include "pipe/fill.h"
#include "runtime/pipeline/pipeline.h"
#include "runtime/pipeline/plan_bubbles.h"
#include "runtime/pipeline/rank_times.h"

namespace spillway::runtime {

/// The seconds of a rank's own work, in means over the steps of one cycle or several.
struct CycleSeconds {
  std::vector<pipe::StageSeconds> stages;  ///< by stage of the model; zeros for other ranks' stages
  double update = 0;                       ///< time that follows a step's passes, refreshes without a plan included
};

/// The work of each rank's Kfac, put into the steps of a cycle. Ranks do all work after their passes until every piece
/// has been timed twice, because the first times are long. Then all of them make the same plan from all times, and
/// follow it. Where no plan is shorter than a cycle that does the work after the passes, they keep to that. Now and
/// then they make another plan from later times, and follow it if it saves a tenth of a cycle. A plan decides when work
/// is done, never what a step computes.
///
/// Gradients of weights that the schedule has apart from those of inputs are placed anew, beside K-FAC's work. Under
/// chimera two ranks that wait at other times share their layers, so averages come after each step's passes, and new
/// inverses are shared when they are due: work that ranks do together is never in bubbles.
class KfacInBubbles {
 public:
  /// `kfac` is this rank's, with a curvature_delay. It waits from here on. `world` are all ranks of the run, which
  /// begins with step `first_step`.
  KfacInBubbles(kfac::Kfac& kfac, std::shared_ptr<const Pipeline> pipeline, ddl::Comm world, int64_t first_step = 0);

  /// Returns the steps of a cycle.
  int64_t cycle() const { return cycle_; }
  /// Returns the items and the extras of this rank in a step, in order; null before there is a plan.
  const std::vector<pipe::FilledItem>* items_of(int64_t step) const;
  /// Returns the kind of a step with a plan, for Session::step(): `filled 3`, `filled 3 of plan 2`.
  std::string kind_of_step(int64_t step) const;
  /// Does the work of an extra of items_of(step), unless it is done already.
  void run(const pipe::FilledItem& extra, int64_t step);
  /// Does what the ranks that have the same weights do together after the passes of a step with a plan.
  void run_together(int64_t step);
  /// Makes the plan where every piece of every rank has been timed twice. Call it after the last step of each cycle
  /// without a plan. Collective over the world. Throws CommError.
  void plan(const CycleSeconds& seconds);
  /// True before the steps in which ranks that have a plan weigh another one: those that begin cycle 8, 32, 128 … of
  /// this run. A run that goes on from a checkpoint counts its own cycles, because its first plan comes after two.
  bool plans_again(int64_t step) const;
  /// Makes a plan from the times since the last one. The ranks follow it where its cycle is a tenth shorter than the
  /// present plan's is by these times. Else they keep their order, and filled() has these times. Collective over the
  /// world. Throws CommError.
  void plan_again(const CycleSeconds& seconds);
  /// Returns the number of plans that were followed so far.
  int plans() const { return plans_; }
  /// Returns the times of this rank, for plan_from().
  RankTimes times_of_rank(const CycleSeconds& seconds) const;
  /// Makes the plan from the times of ranks, one or more of each place. Returns false where a piece has not been timed.
  bool plan_from(const std::vector<RankTimes>& times);

  /// Returns the plan of all ranks; empty before there is one.
  const pipe::Filled& filled() const { return plan_.filled; }
  /// False where the plan leaves work after the passes of its step, because a cycle is shorter so.
  bool fills_bubbles() const { return plan_.fills_bubbles; }
  const std::vector<pipe::Extra>& extras() const { return plan_.extras; }
  /// Returns the kind of an extra's work.
  kfac::RefreshWork::What kind_of(int extra) const { return plan_.kinds[extra]; }
  /// Returns KfacRefreshes::held_peak_bytes().
  int64_t held_peak_bytes() const { return kfac_.refreshes().held_peak_bytes(); }
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
  /// Adds the pieces of a step of the cycle to `times`. Returns false where one of them has not been timed.
  bool add_pieces(int64_t step, RankTimes& times) const;
  std::optional<BubblePlan> plan_of(const std::vector<RankTimes>& times) const;
  void follow(BubblePlan plan);

  kfac::Kfac& kfac_;
  const std::shared_ptr<const Pipeline> pipeline_;
  const ddl::Comm world_;
  const int64_t cycle_;
  const int64_t first_cycle_;    // of the run
  const int64_t micro_batches_;  // of each stage on one rank
  const bool waits_together_;    // ranks with the same weights have the same bubbles
  std::vector<Piece> own_;       // in the order of the plan's extras
  int first_own_ = 0;            // number of the first one among the plan's extras
  std::array<double, 4> seconds_{};
  BubblePlan plan_;
  int plans_ = 0;
  int timed_cycles_ = 0;
};

/// Returns `from here on K-FAC's work is done while ranks wait: …`, or why it is not, of one that has a plan.
std::string describe(const KfacInBubbles& in_bubbles);

}  // namespace spillway::runtime
