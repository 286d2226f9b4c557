/// The results of a model that is cut over ranks.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace spillway {

/// The kinds of work in a pipeline's step.
enum class PipelineWork : uint8_t {
  forward,
  backward,         ///< gradients of a stage's inputs and weights
  input_gradient,   ///< gradients of its inputs alone
  weight_gradient,  ///< gradients of its weights alone
  statistics,       ///< K-FAC's products of a layer for a micro-batch
  average,          ///< K-FAC's averages of factors
  renew,            ///< K-FAC's decompositions
  share,            ///< K-FAC's inverses on their way to the ranks that use them
  exchange,         ///< averages of gradients, buffers and losses, with the wait for ranks that come later
  update,           ///< K-FAC's step and the optimizer's, with refreshes that no wait was used for
};
inline constexpr size_t kPipelineWorkCount = 10;

/// Returns the kind's name in lower case, with underscores.
std::string_view name(PipelineWork work);

/// One stretch of a rank's work.
struct PipelineSpan {
  PipelineWork work = PipelineWork::forward;
  int stage = -1;        ///< −1 where it is of none, or of several
  int micro_batch = -1;  ///< −1 where it is of none
  double begin = 0, end = 0;
};

/// Returns `forward of stage 0, micro-batch 3`, or `K-FAC renew of stage 1`.
std::string describe(const PipelineSpan& span);

/// A rank's part of a step.
struct PipelineRankStep {
  int rank = 0;
  std::vector<PipelineSpan> measured = {}, planned = {};
};

/// One step of all ranks of this rank's copy of the model. Times are seconds since the first rank began its first work,
/// by one clock where the ranks share a host. Ranks on several hosts leave a barrier before the step, and the moment in
/// which each of them leaves it counts as the same. The plan begins at 0 too.
struct PipelineStep {
  double begin = 0;            ///< the measured times' 0, in seconds since the recorded step began
  bool fills_bubbles = false;  ///< the plan is that of K-FAC's work in bubbles; else it is the schedule's replay
  std::vector<PipelineRankStep> ranks = {};  ///< by place
};

/// The seconds of a rank's work by kind, and those in which it waited for messages.
struct PipelineSeconds {
  std::array<double, kPipelineWorkCount> of = {};  ///< by PipelineWork
  double wait = 0;
  double operator[](PipelineWork work) const { return of[static_cast<size_t>(work)]; }
  double& operator[](PipelineWork work) { return of[static_cast<size_t>(work)]; }
  /// Returns the seconds of the program's items in the passes.
  double passes() const;
  /// Returns the seconds of K-FAC's work between these items.
  double kfac() const;
};

/// A rank of a pipeline, in means over steps.
struct PipelineRankSummary {
  int rank = 0;
  std::vector<int> stages = {};
  PipelineSeconds seconds = {};  ///< backward: all gradients; K-FAC's kinds: between the passes' items alone
  int64_t peak_bytes = 0;
  /// Most bytes of inputs and output gradients that K-FAC kept at once for work in waits.
  std::optional<int64_t> held_pair_bytes = {};
  std::optional<double> refresh_steps_mean = {};  ///< steps that a refresh takes, by the plan
  std::optional<int64_t> age_steps_max = {};      ///< most steps from a layer's statistics until its inverse serves
};

/// A channel between two ranks, in means over steps.
struct PipelineChannelSummary {
  int from = 0, to = 0;  ///< stages; gradients go from the higher one to the lower one
  int from_rank = 0, to_rank = 0;
  double bytes_per_step = 0;
  /// Time in which either end could not go on: its message had not come, the sender's own delay included, or all slots
  /// were full.
  double exposed_seconds = 0;
};

/// The plan by which K-FAC's work fills a pipeline's waits, in means over the steps of a cycle.
struct FilledSummary {
  int64_t cycle = 1;                ///< steps of a cycle
  int64_t pieces = 0;               ///< pieces of work of all ranks
  double step_seconds = 0;          ///< a step with that work
  double step_seconds_without = 0;  ///< a step without it
  double kfac_seconds = 0;          ///< that work, of the busiest rank
  double exceeded_seconds() const { return step_seconds - step_seconds_without; }
};

/// A model that is cut over ranks.
struct PipelineSummary {
  std::string schedule;
  int64_t copies = 1;
  int64_t micro_batches = 1;
  std::vector<std::string> parts = {};  ///< the model's
  std::vector<int> cut = {};            ///< parts of each stage
  double pass_seconds = 0;  ///< from a step's first item to its last one; mean over steps, longest of the ranks
  double predicted_pass_seconds = 0;            ///< by the stages' measured seconds, with messages that take no time
  double predicted_utilization = 0;             ///< work as a share of the ranks' time in that
  std::optional<FilledSummary> filled = {};     ///< where K-FAC's work fills waits
  std::vector<PipelineRankSummary> ranks = {};  ///< ranks of this rank's copy, by place
  std::vector<PipelineChannelSummary> channels = {};  ///< channels within this rank's copy
  std::optional<PipelineStep> step = {};              ///< the recorded step

  int64_t stages() const { return std::ssize(cut); }
  /// Returns the work of all ranks in the passes as a share of their time.
  double utilization() const;
  /// Returns the seconds of a pass in which a rank with these seconds has no item of the program.
  double bubble(const PipelineSeconds& seconds) const { return pass_seconds - seconds.passes(); }
  /// Returns the least seconds of a step: the busiest rank's work in the passes, and the shortest update. Waits for
  /// messages are not in it.
  double bound_seconds() const;
  /// Returns the means of the ranks' seconds.
  PipelineSeconds mean_seconds() const;
};

}  // namespace spillway
