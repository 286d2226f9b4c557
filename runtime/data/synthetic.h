/// Synthetic data. They need no files, and the same seed and index give the same data.
#pragma once
#include <array>
#include <cstdint>
#include <string>

#include "runtime/data/dataset.h"
#include "runtime/io/shape3.h"

namespace spillway::runtime {

/// A data set whose cases are computed when they are asked for. Cases have one size, and are named by their numbers.
class SyntheticData : public Dataset {
 public:
  int64_t size() const final { return cases_; }
  Batch at(int64_t index) const override;
  std::string name(int64_t index) const override;
  int64_t case_bytes() const final { return case_bytes_; }

 protected:
  /// `kind` comes before the number in a case's name. Throws BadRequest when there are no cases.
  SyntheticData(std::string kind, int64_t cases, int64_t case_bytes);
  /// Throws BadRequest naming the field where `value` is below `least`.
  static void check_at_least(int64_t least, const char* field, int64_t value);

 private:
  /// Computes a case whose index is in range.
  virtual Batch make(int64_t index) const = 0;

  const std::string kind_;
  const int64_t cases_, case_bytes_;
};

/// Phantoms (see phantom.h), preprocessed as a BratsFolder would. Case i equals case i of write_phantoms() with the
/// same seed, bit for bit. Each is generated when asked for (under a second at 96³); cached() keeps them.
class SyntheticVolumes final : public SyntheticData {
 public:
  struct Options {
    Shape3 shape = {96, 96, 96};  ///< multiples of 16
    int64_t cases = 32;           ///< ≥ 1
    uint64_t seed = 0;
  };
  /// Throws BadRequest naming the bad option and the nearest allowed shape.
  explicit SyntheticVolumes(const Options& options);
  std::string name(int64_t index) const override;

 private:
  Batch make(int64_t index) const override;

  const Options options_;
};

/// Gaussian clusters: class c has center μ_c ~ 1.5 · N(0, I), and its vectors are μ_c + N(0, I). Cases cycle through
/// the classes. Batches: input [1, features] float32, target [1] int64.
class SyntheticVectors : public SyntheticData {
 public:
  struct Options {
    int64_t features = 32;  ///< ≥ 1
    int64_t classes = 10;   ///< ≥ 1
    int64_t cases = 32;     ///< ≥ 1
    uint64_t seed = 0;
  };
  /// Throws BadRequest naming the bad option.
  explicit SyntheticVectors(const Options& options);

 private:
  Batch make(int64_t index) const override;

  const Options options_;
  at::Tensor centers_;  // [classes, features]
};

/// The approximate share of voxels in each of the three sequences, from the top.
inline constexpr std::array<double, 3> kSeismicShares = {0.35, 0.25, 0.40};

/// Amplitudes of three rock sequences, separated by two undulating, faulted horizons. The sequences are evenly layered,
/// finely layered and chaotic. The horizons themselves are bright, and everything is noisy. The class of a voxel is its
/// sequence, which can be inferred from its neighborhood. Batches: input [1, 1, D, H, W] float32 (D is depth), target
/// [1, D, H, W] int64 of 0, 1 and 2.
class SyntheticSeismic final : public SyntheticData {
 public:
  struct Options {
    Shape3 shape = {64, 64, 64};  ///< multiples of 4
    int64_t cases = 64;           ///< ≥ 1
    uint64_t seed = 0;
  };
  /// Throws BadRequest naming the bad option and the nearest allowed shape.
  explicit SyntheticSeismic(const Options& options);

 private:
  Batch make(int64_t index) const override;

  const Options options_;
};

/// Images of a smooth pattern for each class, with noise; cases cycle through the classes.
/// Batches: input [1, 3, edge, edge] float32, target [1] int64.
class SyntheticImages final : public SyntheticData {
 public:
  struct Options {
    int64_t edge = 224;    ///< ≥ 1
    int64_t classes = 10;  ///< ≥ 1
    int64_t cases = 128;   ///< ≥ 1
    uint64_t seed = 0;
  };
  /// Throws BadRequest naming the bad option.
  explicit SyntheticImages(const Options& options);

 private:
  Batch make(int64_t index) const override;

  const Options options_;
  at::Tensor patterns_;  // [classes, 3, 8, 8]
};

/// Images of a parabola's arc (quadratic Bézier) through three random points, drawn with soft edges. Six numbers make
/// an image, after the CURVES of Hinton & Salakhutdinov 2006. Batches: input [1, edge²] float32 in 0 … 1, row by row;
/// target [1, 0], because an autoencoder's input is its own target.
class SyntheticCurves final : public SyntheticData {
 public:
  struct Options {
    int64_t edge = 28;    ///< ≥ 4
    int64_t cases = 128;  ///< ≥ 1
    uint64_t seed = 0;
  };
  /// Throws BadRequest naming the bad option.
  explicit SyntheticCurves(const Options& options);

 private:
  Batch make(int64_t index) const override;

  const Options options_;
};

}  // namespace spillway::runtime
