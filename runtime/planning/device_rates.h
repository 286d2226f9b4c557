/// The rates of a device's kernels, as numbers. runtime/dry_runs/roofline_times.h makes times of them.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

namespace spillway::runtime {

/// The rates that a device's kernels reach.
struct DeviceRates {
  double matrix_flops = 0;       ///< operations per second of float32 matrix products
  double convolution_flops = 0;  ///< operations per second of float32 convolutions of many channels
  /// The number of channels, a geometric mean of a group's inputs and outputs, from which convolutions reach these
  /// rates. With a smaller share of it the rates of both types fall by the 1.5th power of that share. 0: they never
  /// fall.
  double convolution_channels = 0;
  double half_flops = 0;           ///< operations per second of both in 16-bit floats
  double bytes_per_second = 0;     ///< bandwidth of the device's memory
  double operator_seconds = 0;     ///< least time of an operator
  double gap_seconds = 0;          ///< time of the host before an operator, which a GPU's earlier operators hide
  double library_gap_seconds = 0;  ///< time of the host before a convolution or batch norm, which a library computes
  /// Seconds of the eigendecomposition of one symmetric float32 matrix, by its side, ascending.
  std::vector<std::pair<int64_t, double>> eigh_seconds = {};
};

/// Returns the seconds of the eigendecomposition of one symmetric float32 matrix. Between the table's sides the
/// logarithms are interpolated. Below the first one the time grows with the side, and beyond the last one with its
/// cube. 0 without a table.
double decomposition_seconds(const DeviceRates& rates, int64_t side);

}  // namespace spillway::runtime
