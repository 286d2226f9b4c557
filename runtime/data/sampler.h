/// The choice of the cases that each rank learns from in each step.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace spillway::runtime {

/// A sampler that shuffles the training cases anew in every pass, in the same order on every rank. It deals each step's
/// `world × batch` cases to the ranks in order. When a pass does not divide evenly, a step takes its missing cases from
/// the next pass.
class Sampler {
 public:
  /// Samples from `cases`, which are indices and must not be empty.
  Sampler(std::vector<int64_t> cases, int64_t batch, int rank, int world, uint64_t seed);
  /// Returns the cases of this rank in the next step.
  std::vector<int64_t> next();
  /// Draws the first `cases` of the order that all ranks share, and deals them to no rank.
  void skip(int64_t cases);
  /// Returns the number of steps, of `micro_batches` batches each, that see every case at least once.
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

}  // namespace spillway::runtime
