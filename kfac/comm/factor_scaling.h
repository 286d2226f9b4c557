/// The numbers that factors are multiplied by so that they can travel in 16 bits.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kfac/factors/factors.h"
#include "kfac/plan/factor_traffic.h"

namespace spillway::kfac {

/// The two multipliers of one factor. This rank multiplies its own factor by `before` ahead of the exchange, and the
/// average over all ranks by `after`.
struct Scaling {
  double before = 1;
  double after = 1;
  int64_t elements = 0;  ///< elements of its triangles
};

/// The numbers that a rank saw of the finished factors of a bucket. All ranks tell each other these numbers before the
/// factors travel.
class SeenFactors {
 public:
  /// Reads the numbers of the factors of `batch` samples. Synchronizes with the host once.
  SeenFactors(const FactorBucket& bucket, const std::vector<LayerFactors>& layers, int64_t batch);

  /// Returns the numbers of this rank; every rank has equally many.
  const std::vector<double>& numbers() const { return numbers_; }
  /// Returns the Scaling of every factor, from the numbers of `all` ranks in rank order. Rank r saw n_r of the n
  /// samples (positions) that weigh a factor. Its F_r is multiplied by W·n_r/n and divided by a 2^k ≥ the largest entry
  /// of any rank's. The mean over W ranks times 2^k is then Σ_r n_r/n F_r, and no entry that travels exceeds 1.
  std::vector<Scaling> scalings(std::span<const double> all, int64_t rank) const;

 private:
  struct Factor {
    size_t weight;   ///< the place in numbers_ of its weight: samples for G, positions for the others
    size_t largest;  ///< the place in numbers_ of its largest entry
    int64_t elements;
  };
  std::vector<double> numbers_;
  std::vector<Factor> factors_;
};

/// Replaces the float32 triangles that fill `memory`, one factor's after another's, by 16-bit triangles in its front
/// half. Each entry is multiplied by `before`.
void round_in_place(std::span<std::byte> memory, const std::vector<Scaling>& scalings, FactorDtype dtype);

}  // namespace spillway::kfac
