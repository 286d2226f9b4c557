/// The plan of K-FAC's work in the bubbles of a pipeline.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "kfac/plan/refresh_work.h"
#include "pipe/fill.h"
#include "runtime/pipeline/pipeline.h"
#include "runtime/pipeline/rank_times.h"

namespace spillway::runtime {

/// A plan of all ranks, and the work and the times that it was made from.
struct BubblePlan {
  std::vector<pipe::Extra> extras = {};
  std::vector<kfac::RefreshWork::What> kinds = {};  ///< kinds of the extras
  pipe::Costs costs = {};
  pipe::Filled filled = {};
  bool fills_bubbles = true;  ///< false: work stays after the passes of its step, because a cycle is shorter so
};

/// The steps of K-FAC's refreshes.
struct RefreshCycle {
  int64_t steps = 1;  ///< steps after which the refreshes repeat
  int64_t delay = 1;  ///< steps from a refresh's statistics until its inverses serve
};

/// Makes the plan from the times of ranks, one or more of each place; nothing where a piece has not been timed. The
/// slowest rank of a place counts. `message_seconds` are those of a message. Cost and errors are those of
/// pipe::fill_shortest().
std::optional<BubblePlan> plan_bubbles(const PipelinePlan& pipeline, const std::vector<RankTimes>& ranks,
                                       const RefreshCycle& cycle, double message_seconds);

}  // namespace spillway::runtime
