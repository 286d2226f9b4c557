/// What factors are multiplied by so that they can travel in 16 bits.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kfac/factors/factors.h"
#include "kfac/plan/communication_volume.h"

namespace spillway::kfac {

/// Of one factor: what this rank multiplies its own by before it travels, and the average over all ranks by afterwards.
struct Scaling {
  double before = 1;
  double after = 1;
  int64_t elements = 0;  ///< of its triangles
};

/// What a rank saw of the finished factors of a bucket, which all ranks tell each other before the factors travel.
class SeenFactors {
 public:
  /// `batch` samples. Host synchronisation: one.
  SeenFactors(const FactorBucket& bucket, const std::vector<LayerFactors>& layers, int64_t batch);

  /// As many numbers on every rank.
  const std::vector<double>& numbers() const { return numbers_; }
  /// Of every factor, of `all` ranks' numbers in rank order. With rank r's n_r of the n samples (positions) that weigh
  /// a factor, its F_r is multiplied by W·n_r/n and divided by a 2^k ≥ the largest entry of any rank's, so that the
  /// mean over W ranks times 2^k is Σ_r n_r/n F_r, and no entry that travels exceeds 1.
  std::vector<Scaling> scalings(std::span<const double> all, int64_t rank) const;

 private:
  struct Factor {
    size_t weight;   ///< the place in numbers_ of what weighs it: samples for G, positions for the others
    size_t largest;  ///< the place in numbers_ of its largest entry
    int64_t elements;
  };
  std::vector<double> numbers_;
  std::vector<Factor> factors_;
};

/// Replaces the float32 triangles that fill `memory`, one factor's behind another's, by 16-bit ones of `before` times
/// their entries in its front half.
void round_in_place(std::span<std::byte> memory, const std::vector<Scaling>& scalings, FactorDtype dtype);

}  // namespace spillway::kfac
