/// The time that the host takes beside the kernels of a step.
#pragma once
#include "swap/shapes/measured_times.h"

namespace spillway::runtime {

/// Trains a small BERT for some steps, which take 0.2 s, and returns what they take beyond their kernels by `kernels`,
/// where missing ones are measured. No Session may be open on this thread. Leaves the default generator as it was.
swap::HostGaps measure_host_gaps(swap::MeasuredTimes& kernels);

}  // namespace spillway::runtime
