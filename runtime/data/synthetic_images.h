/// Synthetic images. They need no files, and the same seed and index give the same data.
#pragma once
#include <cstdint>
#include <string>

#include "runtime/data/dataset.h"

namespace spillway {

/// Images of a smooth pattern for each class, with noise; cases cycle through the classes.
/// Batches: input [1, 3, edge, edge] float32, target [1] int64.
class SyntheticImages : public Dataset {
 public:
  struct Options {
    int64_t edge = 224;    ///< ≥ 1
    int64_t classes = 10;  ///< ≥ 1
    int64_t cases = 128;   ///< ≥ 1
    uint64_t seed = 0;
  };
  /// Throws BadRequest naming the bad option.
  explicit SyntheticImages(const Options& options);

  int64_t size() const override { return options_.cases; }
  Batch at(int64_t index) const override;
  std::string name(int64_t index) const override;
  int64_t case_bytes() const override;

 private:
  Options options_;
  at::Tensor patterns_;  // [classes, 3, 8, 8]
};

}  // namespace spillway
