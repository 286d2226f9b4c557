#include "kfac/plan/step_work.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "kfac/plan/update_cycle.h"

namespace spillway::kfac {
namespace {

bool is_due(int64_t step, int64_t last, double interval) {
  return last < 0 || static_cast<double>(step - last) >= interval;
}

bool decompositions_are_due(const KfacCounters& counters, const KfacOptions& options) {
  return is_due(counters.steps, counters.last_decomposition_step, options.at(counters.steps).inverse_interval);
}

/// Counts a step that did its work.
void advance(KfacCounters& counters, const KfacOptions& options) {
  const StepWork work = work_of_step(counters, options);
  if (factors_are_due(counters, options)) counters.last_factor_step = counters.steps;
  if (work.launches) counters.last_launch_step = counters.last_decomposition_step = counters.steps;
  if (work.decomposes && (options.staleness == 0 || counters.last_decomposition_step < 0))
    counters.last_decomposition_step = counters.steps;
  ++counters.steps;
}

std::string_view kind_of(const StepWork& work) {
  static constexpr std::array<std::string_view, 8> kKinds{
      "plain",  "factor",        "decompose",        "factor+decompose",
      "launch", "factor+launch", "decompose+launch", "factor+decompose+launch"};
  return kKinds[work.updates_factors + 2 * work.decomposes + 4 * work.launches];
}

int64_t steps_of(double interval) {
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(interval)));
}

}  // namespace

bool factors_are_due(const KfacCounters& counters, const KfacOptions& options) {
  return is_due(counters.steps, counters.last_factor_step, options.at(counters.steps).factor_interval);
}

StepWork work_of_step(const KfacCounters& counters, const KfacOptions& options) {
  StepWork work;
  work.updates_factors = counters.steps < options.burn_in || factors_are_due(counters, options);
  const bool is_first = counters.last_decomposition_step < 0;
  const bool due = decompositions_are_due(counters, options);
  if (options.staleness == 0 || is_first)
    work.decomposes = due;
  else
    work.decomposes = counters.last_launch_step >= 0 && counters.steps == counters.last_launch_step + options.staleness;
  work.launches = options.staleness > 0 && !is_first && due;
  work.kind = kind_of(work);
  return work;
}

std::map<std::string, double> shares_of_kinds(const KfacOptions& options) {
  std::map<std::string, double> shares;
  if (!options.layer_curvature.empty()) {
    const UpdateCycle cycle(options.layer_curvature);
    const int64_t steps = cycle.length();
    for (int64_t step = steps; step < 2 * steps; ++step)
      shares[std::string(cycle.kind(cycle.set_of(step)))] += 1.0 / static_cast<double>(steps);
    return shares;
  }
  constexpr int64_t kPeriods = 10;
  KfacOptions constant = options;
  const auto now = options.in_long_run();
  constant.factor_interval = now.factor_interval;
  constant.inverse_interval = now.inverse_interval;
  const int64_t period = std::max(steps_of(now.factor_interval), steps_of(now.inverse_interval));
  const int64_t begin = options.burn_in + 2 * period;
  KfacCounters counters;
  while (counters.steps < begin) advance(counters, constant);
  while (counters.steps < begin + kPeriods * period) {
    shares[std::string(work_of_step(counters, constant).kind)] += 1.0 / static_cast<double>(kPeriods * period);
    advance(counters, constant);
  }
  return shares;
}

KfacOptions with_short_intervals(KfacOptions options) {
  if (!options.layer_curvature.empty()) return options;
  const auto now = options.in_long_run();
  const int64_t factors = steps_of(now.factor_interval), decompositions = steps_of(now.inverse_interval);
  options.burn_in = 0;
  if (options.staleness >= decompositions) return options;
  const int64_t short_factors = std::min<int64_t>(factors, 2);
  int64_t shortest = decompositions == factors ? short_factors : 2 * short_factors;
  if (decompositions % factors != 0) shortest = short_factors + 1;
  while (shortest <= options.staleness) shortest += decompositions % factors == 0 ? short_factors : short_factors + 1;
  options.factor_interval = static_cast<double>(short_factors);
  options.inverse_interval = static_cast<double>(std::min(shortest, decompositions));
  return options;
}

int64_t steps_of_all_kinds(const KfacOptions& options) {
  if (!options.layer_curvature.empty()) return UpdateCycle(options.layer_curvature).length() + 1;
  const auto now = options.in_long_run();
  const int64_t factors = steps_of(now.factor_interval), decompositions = steps_of(now.inverse_interval);
  return std::lcm(factors, decompositions) + 1 + options.staleness;
}

}  // namespace spillway::kfac
