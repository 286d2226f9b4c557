/// The time that an eigendecomposition takes on this machine. LibTorch-free, for placement and planning.
#pragma once
#include <cstdint>
#include <vector>

namespace spillway::kfac {

/// Measured points, and seconds interpolated between them. Machines differ: ranks that must agree take rank 0's points.
struct DecompositionCosts {
  struct Point {
    int64_t side = 0;
    double seconds = 0;  ///< seconds for one matrix
    bool operator==(const Point&) const = default;
  };
  /// Points with ascending sides ≥ 1, and seconds above 0 that do not fall. The default is one core of an AMD EPYC with
  /// AVX-512, float32.
  std::vector<Point> points = {{16, 1.5e-5}, {64, 1.5e-4}, {256, 3.3e-3}, {864, 5.9e-2}, {1728, 4.2e-1}};

  /// Throws BadRequest naming the point.
  void validate() const;

  /// Returns the seconds for `groups` matrices of `side`, one after another. Between neighboring points it follows a
  /// power law (a straight line in logarithms). Above the last point it grows with side³; below the first it is the
  /// first point's seconds. The result never falls with the side. Throws BadRequest for side or groups < 1 and for
  /// points that validate() refuses.
  double decomposition_seconds(int64_t side, int64_t groups) const;
};

}  // namespace spillway::kfac
