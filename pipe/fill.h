/// Extras in the bubbles of a pipeline.
///
/// Source: Osawa, Li, Hoefler, PipeFisher (2023), section 3. Unlike there, an extra may have a deadline. It may
/// also use all the time by which the next item can be late without making the cycle longer.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "pipe/costs.h"
#include "pipe/extra.h"
#include "pipe/program.h"

namespace spillway::pipe {

/// A cycle of steps that repeats.
struct Filled {
  /// By rank and step, in order. Each step ends with the rank's update.
  std::vector<std::vector<std::vector<FilledItem>>> items = {};
  double seconds = 0;                    ///< a cycle's length
  double unfilled_seconds = 0;           ///< the length without extras
  std::vector<double> busy = {};         ///< seconds of the program's items, by rank
  std::vector<double> filled = {};       ///< seconds of extras, by rank
  std::vector<int64_t> held_bytes = {};  ///< most bytes that the extras hold, by rank
  int steps() const { return items.empty() ? 0 : static_cast<int>(items.front().size()); }
  /// Returns the work of all ranks as a share of their time.
  double utilization() const;
  /// Returns the seconds by which extras that found no room make the cycle longer.
  double exceeded_seconds() const { return seconds - unfilled_seconds; }
  /// Returns the most steps, from its taken_step on, after which an extra of the rank is done.
  int steps_until_done(int rank, std::span<const Extra> extras) const;
};

/// Puts the extras into the bubbles of a program's steps, which follow each other without a barrier. The program is one
/// that check() takes, or lacks gradients of weights alone, which are extras then. A rank chooses among the
/// extras that may begin, and whose next piece ends in time for its next item. It takes the one with the earliest
/// deadline, and of these the longest. An extra that finds no room before its deadline is done right before the update,
/// and delays it. The result depends on the arguments alone. Cost: O(items · extras of a rank). Throws BadRequest
/// naming the extra when it has no rank or item of the program, no seconds, or steps outside the cycle. Throws it too
/// when extras wait for each other for ever.
Filled fill(const StepProgram& program, std::span<const Extra> extras, const Costs& costs, const FillOptions& options);

}  // namespace spillway::pipe
