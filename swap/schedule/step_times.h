/// The times that operators of one kind of step take, over its steps.
#pragma once
#include <deque>
#include <vector>

#include "swap/schedule/link_rates.h"
#include "swap/schedule/step_trace.h"
#include "swap/tiers/copy_totals.h"

namespace spillway::swap {

/// Typical and shortest times of a step's operators. Typical times, for predictions, are the mean of the latest steps
/// except the fastest and the slowest. They add up to a typical step's time. Shortest times, for bounds, are the
/// shortest ever, because everything else on the machine only adds.
class StepTimes {
 public:
  /// The number of latest steps that are kept; adding one more forgets the oldest.
  static constexpr size_t kLatest = 5;

  /// Adds a step of the same operators as those before, with the totals of the copy lanes in it.
  void note(const StepTrace& step, const LaneTotals& lanes);
  /// Forgets the latest steps, because they were not typical. Their shortest times stay.
  void forget_latest() { latest_.clear(); }
  /// Fills in the times of a trace with the same operators.
  void apply_to(StepTrace& trace) const;
  /// Returns the rates of the lanes in the latest steps; a lane without enough work to measure keeps its rate of
  /// `before`.
  LinkRates rates(LinkRates before) const;

 private:
  struct OperatorSeconds {
    double kernel = 0;
    double host = 0;  ///< seconds of the host before the kernel
    double sum() const { return kernel + host; }
  };
  struct Step {
    std::vector<OperatorSeconds> operators;  ///< the step's tail is one more operator, with the host's time alone
    double seconds = 0;
    LaneTotals lanes;
  };
  std::vector<const Step*> typical_steps() const;

  std::deque<Step> latest_;
  std::vector<double> shortest_;  // by operator, kernel and host together
};

}  // namespace spillway::swap
