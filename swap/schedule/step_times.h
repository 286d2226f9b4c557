/// How long the operators of one kind of step take, over its steps.
#pragma once
#include <deque>
#include <vector>

#include "swap/schedule/simulation.h"
#include "swap/schedule/step_trace.h"
#include "swap/tiers/copy_totals.h"

namespace spillway {

/// Typical times, for predictions: of the latest steps, the mean of all but the fastest and the slowest, so that they
/// add up to a typical step's. And the shortest ever, for bounds: everything else on the machine only adds.
class StepTimes {
 public:
  /// From this many steps on, adding one forgets the oldest.
  static constexpr size_t kLatest = 5;

  /// Adds a step of the same operators as those before, and what the copy lanes did in it.
  void note(const StepTrace& step, const LaneTotals& lanes);
  /// The steps so far were not typical. Their shortest times stay.
  void forget_latest() { latest_.clear(); }
  /// Fills in the times of a trace with the same operators.
  void apply_to(StepTrace& trace) const;
  /// What the lanes did in the latest steps; a lane that did nothing worth measuring keeps its rate of `before`.
  LinkRates rates(LinkRates before) const;

 private:
  struct OperatorSeconds {
    double kernel = 0;
    double host = 0;  ///< before it
    double sum() const { return kernel + host; }
  };
  struct Step {
    std::vector<OperatorSeconds> operators;  ///< the step's tail is the host's time of one more
    double seconds = 0;
    LaneTotals lanes;
  };
  std::vector<const Step*> typical_steps() const;

  std::deque<Step> latest_;
  std::vector<double> shortest_;  // by operator, both together
};

}  // namespace spillway
