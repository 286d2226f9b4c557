/// Synthetic images of curves. They need no files, and the same seed and index give the same data.
#pragma once
#include <cstdint>
#include <string>

#include "runtime/data/dataset.h"

namespace spillway {

/// Images of a parabola's arc (quadratic Bézier) through three random points, drawn with soft edges. Six numbers make
/// an image, after the CURVES of Hinton & Salakhutdinov 2006. Batches: input [1, edge²] float32 in 0 … 1, row by row;
/// target [1, 0], because an autoencoder's input is its own target.
class SyntheticCurves : public Dataset {
 public:
  struct Options {
    int64_t edge = 28;    ///< ≥ 4
    int64_t cases = 128;  ///< ≥ 1
    uint64_t seed = 0;
  };
  /// Throws BadRequest naming the bad option.
  explicit SyntheticCurves(const Options& options);

  int64_t size() const override { return options_.cases; }
  Batch at(int64_t index) const override;
  std::string name(int64_t index) const override;
  int64_t case_bytes() const override;

 private:
  Options options_;
};

}  // namespace spillway
