/// Factors on their way to other ranks while backward goes on.
#pragma once
#include <deque>
#include <memory>
#include <vector>

#include "ddl/home_reduce.h"
#include "ddl/operators.h"
#include "kfac/factor_reduction.h"

namespace spillway::kfac {

/// Reduces the buckets of one step from the last to the first, as backward meets them: each starts when all its layers'
/// factors are complete and the buckets behind it have started, moves on whenever a further layer is staged, and ends
/// in finish(). In 16 bits the ranks first tell each other what they saw (kfac/factor_scaling.h), while backward goes
/// on, too. The order of messages, of operators and of sums depends on no timing, so the bits are those of
/// reduce_factors(). Messages lie in memory from LibTorch's allocator, which a budget counts (Category::staging) and
/// nobody moves: from a bucket's start to its finish(), whatever the messages' timing. In float32 that is twice the
/// bucket's bytes, and with owners up to world times an owner's; in 16 bits the bucket's float32 triangles, and with
/// more than two ranks and owners up to world times an owner's 16-bit ones besides. Host synchronisation: with 16 bits
/// one a bucket. Used by one thread at a time.
class EarlyReduction {
 public:
  EarlyReduction(std::vector<FactorBucket> buckets, std::vector<Assignment> assignments, FactorDtype dtype,
                 ddl::Comm comm);
  /// Waits for messages under way.
  ~EarlyReduction();
  EarlyReduction(const EarlyReduction&) = delete;
  EarlyReduction& operator=(const EarlyReduction&) = delete;

  /// Of the messages of all buckets that have started and not finished.
  int64_t bytes() const;

  /// A backward is about to begin, of `batch` samples, that will stage each layer uses[layer] times.
  void begin(std::vector<int64_t> uses, int64_t batch);
  /// A use of `layer` has been staged. Throws ddl::CommError.
  void staged(size_t layer, std::vector<LayerFactors>& layers);
  /// Blocks until the bucket's factors are the global batch's. Every rank finishes all buckets, from the last to the
  /// first. Throws ddl::CommError.
  void finish(size_t bucket, std::vector<LayerFactors>& layers);
  /// Ends a step whose factors nobody wants: finishes what was begun anywhere. Every rank calls it.
  void discard(std::vector<LayerFactors>& layers);

 private:
  struct Flight;

  bool complete(size_t bucket) const;
  void start_next(std::vector<LayerFactors>& layers);
  std::vector<ddl::HomePart> owners_parts(const FactorBucket& bucket, const std::vector<LayerFactors>& layers) const;
  void advance();

  const std::vector<FactorBucket> buckets_;
  const std::vector<Assignment> assignments_;
  const FactorDtype dtype_;
  const ddl::Comm comm_;
  std::vector<int64_t> uses_left_;
  int64_t batch_ = 0;
  bool begun_ = false;
  std::deque<std::unique_ptr<Flight>> flights_;  ///< in the order of their start
  size_t to_start_;                              ///< buckets that have not started: the first so many
};

}  // namespace spillway::kfac
