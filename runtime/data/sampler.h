/// Which cases each rank learns from in each step.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace spillway {

/// Shuffles the training cases anew in every pass, alike on every rank, and deals each step's `world × batch` cases to
/// the ranks in order. A pass that does not divide evenly goes on in the next one.
class Sampler {
 public:
  /// `cases`: indices to draw from, not empty.
  Sampler(std::vector<int64_t> cases, int64_t batch, int rank, int world, uint64_t seed);
  /// The cases of this rank in the next step.
  std::vector<int64_t> next();
  /// Draws the first `cases` of the order that all ranks share, and deals them to nobody.
  void skip(int64_t cases);
  /// Steps of `micro_batches` batches each that see every case at least once.
  int64_t steps_per_epoch(int64_t micro_batches = 1) const;

 private:
  int64_t draw();

  std::vector<int64_t> cases_;
  const int64_t batch_;
  const int rank_;
  const int world_;
  const uint64_t seed_;
  uint64_t pass_ = 0;
  size_t position_ = 0;
};

}  // namespace spillway
