/// Work in the waits of a pipeline.
///
/// Ranks of a pipeline wait in each step. Work that is not urgent, such as the statistics and decompositions of a
/// second-order method, can be done meanwhile. It is given as seconds, bytes, what it comes after, and when it must be
/// done. Source: Osawa, Li, Hoefler, PipeFisher (2023), section 3. Unlike there, an extra may use all the time by which
/// the next item can be late without making the cycle longer, and work may have a deadline.
#pragma once
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "pipe/costs.h"
#include "pipe/program.h"

namespace spillway::pipe {

/// Work of one rank that is done once in each cycle of steps.
struct Extra {
  int rank = 0;
  double seconds = 0;
  int pieces = 1;               ///< equal parts that other items may come between
  Item ready = {};              ///< it may begin when this item of its rank ends
  int taken_step = 0;           ///< the step of that item, in the cycle
  std::vector<int> after = {};  ///< the extras, of any rank, that must be done before it
  /// It is done before the rank's update in this step; from the cycle's length on: in the next cycle. −1: in any step.
  int serves_step = -1;
  int64_t held_bytes = 0;  ///< memory that is held from when it may begin until it is done
};

struct FillOptions {
  /// Steps of a cycle; 0: as many as extras that are all ready in step 0 need, none of which has a deadline.
  int steps = 1;
  /// Share of an extra's seconds that must be free after it, against late items.
  double margin = 0.05;
  /// Most bytes that the extras of a rank hold. Where the next item would exceed that, they are done before it.
  int64_t held_bytes_limit = std::numeric_limits<int64_t>::max();
};

/// An item of the program, or a piece of an extra.
struct FilledItem {
  Item item = {};  ///< the program's item, where `extra` is −1
  int extra = -1, piece = 0;
  int age = 0;                ///< cycles since the extra's taken_step
  double begin = 0, end = 0;  ///< seconds from the cycle's start
};

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
  /// Returns the steps, from taken_step on, after which the rank's last extra is done.
  int refresh_steps(int rank, std::span<const Extra> extras) const;
};

/// Puts the extras into the waits of a program's steps, which follow each other without a barrier. The program is one
/// that check() takes, or lacks gradients of weights alone, which are extras then. Each rank takes, of
/// the extras that may begin, the one with the earliest deadline that ends in time for its next item, and of these the
/// longest. An extra that finds no room before its deadline is done right before the update, and delays it. The result
/// depends on the arguments alone. Cost: O(items · extras of a rank). Throws BadRequest naming the extra when it has no
/// rank or item of the program, no seconds, or steps outside the cycle, and when extras wait for each other for ever.
Filled fill(const StepProgram& program, std::span<const Extra> extras, const Costs& costs, const FillOptions& options);

}  // namespace spillway::pipe
