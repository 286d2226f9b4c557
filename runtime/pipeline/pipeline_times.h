/// The times of a rank's items and extras, by the clock of its pipeline.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "pipe/costs.h"
#include "pipe/fill.h"
#include "runtime/pipeline/pipeline_clock.h"

namespace spillway::runtime {

/// The seconds of all learn() calls of a rank, by its clock.
struct PipelineTotals {
  int64_t passes = 0;
  double seconds = 0;  ///< from the first item to the last one
  double forward = 0, backward = 0;
  double wait = 0;    ///< for messages
  double extras = 0;  ///< other work between the items
};

/// A record of a rank's passes.
class PipelineTimes {
 public:
  PipelineTimes(int stages, std::shared_ptr<PipelineClock> clock);

  /// Begins a pass, at 0 of the clock, and forgets the spans of the last one.
  void start();
  /// Ends a pass. `waited` are the seconds of waits for messages in all passes so far.
  void stop(double waited);
  double now() const { return clock_->now(); }
  /// Notes the end of an item that began at `begin`.
  void done(const pipe::Item& item, double begin);
  /// Notes the end of an extra that began at `begin`.
  void extra_done(const pipe::FilledItem& extra, double begin);

  /// Returns the items and the extras of the last pass, in order.
  const std::vector<pipe::FilledItem>& spans() const { return spans_; }
  const PipelineTotals& totals() const { return totals_; }
  /// Returns the mean seconds of each stage's items since the last call. A backward that is one item counts half for
  /// gradients of inputs and half for those of weights, unless `splits_backward`.
  std::vector<pipe::StageSeconds> take_stage_seconds(bool splits_backward);

 private:
  const std::shared_ptr<PipelineClock> clock_;
  std::vector<pipe::FilledItem> spans_;
  PipelineTotals totals_;
  std::vector<pipe::StageSeconds> stage_sums_;  ///< by stage, since they were taken
  std::vector<int64_t> stage_passes_;           ///< forwards of each stage since then
};

}  // namespace spillway::runtime
