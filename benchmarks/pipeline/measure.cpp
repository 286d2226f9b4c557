#include "benchmarks/pipeline/measure.h"

#include <algorithm>
#include <ctime>
#include <numeric>

#include "pipe/schedules.h"

namespace spillway::tools {
namespace {

/// Steps of empty items, and of items beside messages, that are measured.
constexpr int kEmptySteps = 200, kBesideSteps = 3;

double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

/// Returns the figures of a step in a cycle of so many seconds.
StepFigures figures_of(const pipe::Filled& filled, double cycle_seconds, double alone_seconds) {
  const double time = cycle_seconds * static_cast<double>(filled.busy.size());
  const double busy = sum(filled.busy), extras = sum(filled.filled), step = cycle_seconds / filled.steps();
  return {.seconds = step,
          .utilization = (busy + extras) / time,
          .filled = time > busy ? extras / (time - busy) : 0,
          .exceeded_seconds = step - alone_seconds};
}

/// Returns the seconds of a step without a refresh.
double run_alone(const pipe::StepProgram& program, const pipe::Costs& costs, int steps, const Messages& messages) {
  const pipe::Filled alone = pipe::fill(program, {}, costs, {.steps = 1});
  return run_cycles(program, alone, {}, costs, {.cycles = steps, .messages = messages}).cycle_seconds;
}

}  // namespace

Figures measure_alone(const EmulatedPipeline& pipeline, const MeasureOptions& options) {
  const pipe::Filled alone = pipe::fill(pipeline.program, {}, pipeline.costs, {.steps = 1});
  const double measured = run_alone(pipeline.program, pipeline.costs, options.steps, options.messages);
  return {figures_of(alone, alone.seconds, alone.seconds), figures_of(alone, measured, measured)};
}

MeasuredRefresh measure_refresh(const EmulatedPipeline& pipeline, const RefreshOptions& refresh, const Figures& alone,
                                const MeasureOptions& options) {
  MeasuredRefresh result{.plan = plan_refresh(pipeline, refresh)};
  const pipe::Filled& filled = result.plan.filled;
  const int cycles = (options.steps + filled.steps() - 1) / filled.steps();
  const double measured = run_cycles(pipeline.program, filled, result.plan.extras, pipeline.costs,
                                     {.cycles = cycles, .messages = options.messages})
                              .cycle_seconds;
  for (int rank = 0; rank < pipeline.ranks(); ++rank)
    result.done_in_steps = std::max(result.done_in_steps, filled.steps_until_done(rank, result.plan.extras));
  result.figures = {figures_of(filled, filled.seconds, alone.predicted.seconds),
                    figures_of(filled, measured, alone.measured.seconds)};
  return result;
}

EmptyItem measure_empty(const EmulatedPipeline& pipeline, const Messages& messages) {
  const bool is_split = pipeline.program.splits_backward;
  const auto stages = [&](const pipe::StageSeconds& seconds) {
    return std::vector<pipe::StageSeconds>(pipeline.costs.stages.size(), seconds);
  };
  // With items of a second, a step takes as many seconds as there are items on its longest path.
  const pipe::Costs ones{.stages = stages(is_split ? pipe::StageSeconds{1, 1, 1} : pipe::StageSeconds{1, 0.5, 0.5}),
                         .update = 1};
  const pipe::Filled longest = pipe::fill(pipeline.program, {}, ones, {.steps = 1});
  const std::clock_t before = std::clock();
  const double step = run_alone(pipeline.program, {.stages = stages({})}, kEmptySteps, messages);
  const double processor = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  return {.seconds = step / longest.seconds, .processor_seconds = processor / kEmptySteps / sum(longest.busy)};
}

std::vector<BesideItems> measure_beside(const std::vector<int64_t>& sizes, double link_bytes_per_second) {
  constexpr int kRanks = 2, kHideable = 2 * (kBesideMicroBatches - 1);
  const pipe::StepProgram program = pipe::gpipe(kRanks, kBesideMicroBatches);
  const pipe::Costs costs = pipe::equal_stages(kRanks, kBesideSeconds, kBesideSeconds);
  const auto step = [&](int64_t bytes) {
    return run_alone(program, costs, kBesideSteps, {bytes, link_bytes_per_second});
  };
  std::vector<BesideItems> results;
  for (int64_t bytes : sizes) {
    const double message = message_seconds({bytes, link_bytes_per_second}, kMessageRepeats);
    const double alone = step(0), beside = step(bytes), exposed = beside - alone;
    results.push_back({.bytes = bytes,
                       .message_seconds = message,
                       .exposed_seconds = exposed,
                       .step_seconds = beside,
                       .hidden = 1 - (exposed - 2 * message) / (kHideable * message)});
  }
  return results;
}

}  // namespace spillway::tools
