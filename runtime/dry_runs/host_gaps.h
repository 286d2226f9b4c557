/// The time that the host takes beside the kernels of a step.
#pragma once
#include "swap/shapes/measured_times.h"

namespace spillway::runtime {

/// Trains a small BERT for some steps, which take half a second, and returns what passes between its operators in the
/// fastest of them. No Session may be open on this thread. Leaves the default generator as it was.
swap::HostGaps measure_host_gaps();

}  // namespace spillway::runtime
