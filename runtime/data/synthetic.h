/// Synthetic volumes and vectors. They need no files, and the same seed and index give the same data.
#pragma once
#include <cstdint>
#include <string>

#include "runtime/data/dataset.h"
#include "runtime/io/shape3.h"

namespace spillway {

/// Phantoms (see phantom.h), preprocessed as a BratsFolder would. Case i equals case i of write_phantoms() with the
/// same seed, bit for bit. Each is generated when asked for (under a second at 96³); cached() keeps them.
class SyntheticVolumes : public Dataset {
 public:
  struct Options {
    Shape3 shape = {96, 96, 96};  ///< multiples of 16
    int64_t cases = 32;           ///< ≥ 1
    uint64_t seed = 0;
  };
  /// Throws BadRequest naming the bad option and the nearest allowed shape.
  explicit SyntheticVolumes(const Options& options);

  int64_t size() const override { return options_.cases; }
  Batch at(int64_t index) const override;
  std::string name(int64_t index) const override;
  int64_t case_bytes() const override;

 private:
  Options options_;
};

/// Gaussian clusters: class c has center μ_c ~ 1.5 · N(0, I), and its vectors are μ_c + N(0, I). Cases cycle through
/// the classes. Batches: input [1, features] float32, target [1] int64.
class SyntheticVectors : public Dataset {
 public:
  struct Options {
    int64_t features = 32;  ///< ≥ 1
    int64_t classes = 10;   ///< ≥ 1
    int64_t cases = 32;     ///< ≥ 1
    uint64_t seed = 0;
  };
  /// Throws BadRequest naming the bad option.
  explicit SyntheticVectors(const Options& options);

  int64_t size() const override { return options_.cases; }
  Batch at(int64_t index) const override;
  std::string name(int64_t index) const override;
  int64_t case_bytes() const override;

 private:
  Options options_;
  at::Tensor centers_;  // [classes, features]
};

}  // namespace spillway
