#include "runtime/planning/forecast.h"

#include <algorithm>
#include <string_view>

#include "core/bytes.h"
#include "swap/schedule/schedule.h"

namespace spillway::runtime {
namespace {

/// The share below which a kind of step hardly counts, so that its schedule is worth less effort.
constexpr double kRare = 0.2;

using swap::Schedule;
using swap::StepTrace;

bool is_collective(std::string_view name) {
  return name.starts_with("spillway::") && name != "spillway::eigh";
}

/// True for the collectives that all ranks make. Broadcasts and a pipeline's messages have members of their own.
bool is_of_all(std::string_view name) {
  return is_collective(name) && name != "spillway::broadcast_" && name != "spillway::send" &&
         name != "spillway::receive_";
}

/// Returns the seconds of each part of a step. A part ends after each collective that all ranks make, and the last one
/// with the step.
std::vector<double> parts_of(const StepTrace& trace, const Schedule& schedule) {
  std::vector<double> parts;
  double begin = 0;
  for (size_t i = 0; i < trace.operators.size(); ++i) {
    if (!is_of_all(trace.operators[i].name)) continue;
    parts.push_back(schedule.ends[i] - begin);
    begin = schedule.ends[i];
  }
  parts.push_back(schedule.predicted_seconds - begin);
  return parts;
}

double collective_seconds(const StepTrace& trace) {
  double seconds = 0;
  for (const swap::OperatorRecord& op : trace.operators)
    if (is_collective(op.name)) seconds += op.seconds;
  return seconds;
}

/// One rank's step under the budget.
struct RankStep {
  Schedule schedule;
  std::vector<double> parts;
};

RankStep step_of(const StepTrace& trace, const swap::ScheduleInputs& inputs) {
  RankStep step{.schedule = swap::make_schedule(trace, inputs), .parts = {}};
  if (step.schedule.predicted_seconds > 0) step.parts = parts_of(trace, step.schedule);
  return step;
}

void take_maximum(StepForecast& of_all, const StepTrace& trace, const Schedule& schedule) {
  const auto raise = [](auto& value, auto other) { value = std::max(value, other); };
  const double collectives = collective_seconds(trace);
  raise(of_all.compute_seconds, trace.compute_seconds() - collectives);
  raise(of_all.copy_seconds, schedule.exposed_seconds);
  raise(of_all.message_seconds, schedule.message_seconds + collectives);
  raise(of_all.bound_seconds, schedule.bound_seconds);
  raise(of_all.peak_bytes, schedule.predicted_peak_bytes);
  raise(of_all.host_bytes, schedule.host_bytes);
  raise(of_all.bytes_out, schedule.bytes_out);
  raise(of_all.bytes_in, schedule.bytes_in);
}

/// Returns the time of a step of all ranks. Ranks whose steps have other parts, as a rank without layers may, count as
/// a whole.
double seconds_of(const std::vector<RankStep>& steps) {
  const size_t count = steps.front().parts.size();
  double whole = 0;
  bool alike = true;
  for (const RankStep& step : steps) {
    alike &= step.parts.size() == count;
    whole = std::max(whole, step.schedule.predicted_seconds);
  }
  if (!alike) return whole;
  double seconds = 0;
  for (size_t p = 0; p < count; ++p) {
    double slowest = 0;
    for (const RankStep& step : steps) slowest = std::max(slowest, step.parts[p]);
    seconds += slowest;
  }
  return seconds;
}

/// Returns the trace of a rank's steps of a kind; nullptr where the rank has none, as one without cases to validate.
const StepTrace* trace_of(const RankSteps& rank, const std::string& kind) {
  for (const KindOfStep& own : rank.kinds)
    if (own.trace.kind == kind) return &own.trace;
  return nullptr;
}

StepForecast forecast_kind(const std::vector<RankSteps>& ranks, const KindOfStep& kind,
                           const swap::ScheduleInputs& inputs, bool& feasible) {
  StepForecast of_all{.kind = kind.trace.kind, .share = kind.share};
  swap::ScheduleInputs effort = inputs;
  if (kind.share < kRare) effort.candidates = kind.share > 0 ? inputs.candidates / 4 : 0;
  std::vector<RankStep> steps;
  for (const RankSteps& rank : ranks) {
    const StepTrace* trace = trace_of(rank, kind.trace.kind);
    if (!trace) continue;
    steps.push_back(step_of(*trace, effort));
    feasible &= steps.back().schedule.predicted_seconds > 0;
    take_maximum(of_all, *trace, steps.back().schedule);
  }
  if (feasible) of_all.seconds = seconds_of(steps);
  return of_all;
}

}  // namespace

Forecast forecast(const std::vector<RankSteps>& ranks, const swap::ScheduleInputs& inputs) {
  Forecast result;
  for (const RankSteps& rank : ranks) result.feasible &= rank.floor_bytes <= inputs.budget_bytes;
  for (const KindOfStep& kind : ranks.front().kinds) {
    if (!result.feasible) break;
    StepForecast step = forecast_kind(ranks, kind, inputs, result.feasible);
    result.seconds += step.share * step.seconds;
    result.peak_bytes = std::max(result.peak_bytes, step.peak_bytes);
    result.host_bytes = std::max(result.host_bytes, step.host_bytes);
    result.kinds.push_back(std::move(step));
  }
  return result;
}

}  // namespace spillway::runtime
