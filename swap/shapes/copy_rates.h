/// The rate of copies on the CPU.
#pragma once

namespace spillway::swap {

/// Measures how many bytes a second one thread copies between large buffers while the other threads multiply matrices.
/// Takes 0.2 s.
double measure_copy_rate();

}  // namespace spillway::swap
