/// Synthetic seismic volumes, for use when no survey is available.
#pragma once
#include <array>
#include <cstdint>
#include <string>

#include "runtime/data/dataset.h"
#include "runtime/io/shape3.h"

namespace spillway {

/// The approximate share of voxels in each of the three sequences, from the top.
inline constexpr std::array<double, 3> kSeismicShares = {0.35, 0.25, 0.40};

/// Amplitudes of three rock sequences, separated by two undulating, faulted horizons. The sequences are evenly layered,
/// finely layered and chaotic. The horizons themselves are bright, and everything is noisy. The class of a voxel is its
/// sequence, which can be inferred from its neighborhood. Batches: input [1, 1, D, H, W] float32 (D is depth), target
/// [1, D, H, W] int64 of 0, 1 and 2.
class SyntheticSeismic : public Dataset {
 public:
  struct Options {
    Shape3 shape = {64, 64, 64};  ///< multiples of 4
    int64_t cases = 64;           ///< ≥ 1
    uint64_t seed = 0;
  };
  /// Throws BadRequest naming the bad option and the nearest allowed shape.
  explicit SyntheticSeismic(const Options& options);

  int64_t size() const override { return options_.cases; }
  Batch at(int64_t index) const override;
  std::string name(int64_t index) const override;
  int64_t case_bytes() const override;

 private:
  Options options_;
};

}  // namespace spillway
