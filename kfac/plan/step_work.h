/// The work that K-FAC does in a step besides preconditioning, by the intervals. LibTorch-free.
#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "kfac/plan/counters.h"
#include "kfac/plan/options.h"

namespace spillway::kfac {

/// True when the step's factor update is one that the interval asks for; those of the burn-in come on top.
bool factors_are_due(const KfacCounters& counters, const KfacOptions& options);
/// Returns the work of the step that `counters` are before, of layers whose curvature is renewed together: `options`
/// have no layer_curvature.
StepWork work_of_step(const KfacCounters& counters, const KfacOptions& options);

/// Returns the share of each kind of step in a long run, after the burn-in, with the intervals of
/// KfacOptions::in_long_run(). With layer_curvature these are the kinds of UpdateCycle. The shares add up to 1.
std::map<std::string, double> shares_of_kinds(const KfacOptions& options);

/// Returns options whose kinds of step are those of `options`, and all come within a few steps: intervals are short,
/// and there is no burn-in. Options with layer_curvature stay as they are.
KfacOptions with_short_intervals(KfacOptions options);

/// Returns the number of steps within which every kind comes after the first step, which makes the state.
int64_t steps_of_all_kinds(const KfacOptions& options);

}  // namespace spillway::kfac
