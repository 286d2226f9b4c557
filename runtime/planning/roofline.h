/// The rates of a device's kernels, as numbers.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

namespace spillway::runtime {

/// The rates that a device's kernels reach.
struct Roofline {
  double matrix_flops = 0;       ///< operations per second of float32 matrix products
  double convolution_flops = 0;  ///< operations per second of float32 convolutions
  double half_flops = 0;         ///< operations per second of both in 16-bit floats
  double bytes_per_second = 0;   ///< bandwidth of the device's memory
  double operator_seconds = 0;   ///< least time of an operator
  double gap_seconds = 0;        ///< time of the host between two operators that the device does not hide
  /// Seconds of the eigendecomposition of one symmetric float32 matrix, by its side, ascending. Between sides the
  /// logarithms are interpolated. Beyond the last one the time grows with the cube of the side.
  std::vector<std::pair<int64_t, double>> eigh_seconds = {};
};

}  // namespace spillway::runtime
