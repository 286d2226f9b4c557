/// How long an eigendecomposition takes on this machine. LibTorch-free, for placement and planning.
#pragma once
#include <cstdint>
#include <vector>

namespace spillway::kfac {

/// Measured points and what lies between them. Machines differ: ranks that must agree take rank 0's.
struct DecompositionCosts {
  struct Point {
    int64_t side = 0;
    double seconds = 0;  ///< of one matrix
    bool operator==(const Point&) const = default;
  };
  /// Ascending sides ≥ 1, seconds above 0 and not falling. The default: one core of an AMD EPYC with AVX-512, float32.
  std::vector<Point> points = {{16, 1.5e-5}, {64, 1.5e-4}, {256, 3.3e-3}, {864, 5.9e-2}, {1728, 4.2e-1}};

  /// Throws BadRequest naming the point.
  void validate() const;

  /// Seconds for `groups` matrices of `side`, one after another. A power law between neighbouring points (a straight
  /// line in logarithms), side³ above the last, the first point's seconds below it: never falls with the side. Throws
  /// BadRequest for side or groups < 1 and for points that validate() refuses.
  double decomposition_seconds(int64_t side, int64_t groups) const;
};

}  // namespace spillway::kfac
