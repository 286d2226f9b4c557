/// Factors on their way to other ranks while backward goes on.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "ddl/allreduce/owner_reduction.h"
#include "ddl/allreduce/tuned_allreduce.h"
#include "ddl/comm/background_queue.h"
#include "ddl/torch/dense_tensor.h"
#include "ddl/torch/operators.h"
#include "kfac/comm/factor_reduction.h"

namespace spillway::kfac {

/// Reduces the buckets of one step from the last to the first, as backward meets them: each starts when all its layers'
/// factors are complete and the buckets behind it have started, goes on as a job of a queue of its own
/// (ddl/comm/background_queue.h), and ends in finish(). In 16 bits that job begins with the ranks telling each other
/// what they saw (kfac/comm/factor_scaling.h). The order of messages, of operators and of sums depends on no timing, so
/// the bits are those of reduce_factors(). What travels lies in memory from LibTorch's allocator, which a budget counts
/// (Category::staging) and nobody moves, whatever the messages' timing: a bucket's triangles in float32, also where
/// they travel in 16 bits, from its start to its finish(); and the scratch of the neediest bucket, a few chunks, from
/// the first one's start to the last one's finish(). Host synchronisation: with 16 bits one a bucket. Used by one
/// thread at a time.
class EarlyReduction {
 public:
  /// Collective. Throws ddl::CommError.
  EarlyReduction(std::vector<FactorBucket> buckets, const std::vector<LayerFactors>& layers,
                 std::vector<Assignment> assignments, FactorDtype dtype, ddl::Comm comm);
  /// A step that was begun and not finished is given up: every rank then gets a CommError.
  ~EarlyReduction();
  EarlyReduction(const EarlyReduction&) = delete;
  EarlyReduction& operator=(const EarlyReduction&) = delete;

  /// Of what travels, and of scratch.
  int64_t bytes() const;

  /// A backward is about to begin, of `batch` samples, that will stage each layer uses[layer] times.
  void begin(std::vector<int64_t> uses, int64_t batch);
  /// A use of `layer` has been staged. Waits for no message.
  void staged(size_t layer, std::vector<LayerFactors>& layers);
  /// Blocks until the bucket's factors are the global batch's. Every rank finishes all buckets, from the last to the
  /// first. Throws ddl::CommError.
  void finish(size_t bucket, std::vector<LayerFactors>& layers);
  /// Ends a step whose factors nobody wants: finishes what was begun anywhere. Every rank calls it.
  void discard(std::vector<LayerFactors>& layers);

 private:
  /// A bucket under way: the worker's until the ticket is done.
  struct Flight {
    ddl::StagingMemory memory;        ///< float32 triangles, from whose front they travel
    std::optional<SeenFactors> seen;  ///< in 16 bits
    std::vector<Scaling> scalings;
    Ticket ticket;
  };

  /// What one bucket's reduction needs; its scratch in bytes.
  int64_t prepare(size_t bucket, const std::vector<LayerFactors>& layers);
  bool complete(size_t bucket) const;
  at::Tensor packed(size_t bucket, const Flight& flight, FactorDtype type) const;
  void start_next(std::vector<LayerFactors>& layers);
  /// The worker's part. Calls no operator, whose place in a step would depend on when messages come.
  void reduce(size_t bucket, Flight& flight);
  void scale(Flight& flight);

  const std::vector<FactorBucket> buckets_;
  const std::vector<Assignment> assignments_;
  const FactorDtype dtype_;
  const ddl::Comm comm_;
  const std::shared_ptr<ddl::Communicator> queue_comm_;
  ddl::TunedAllreduce allreduce_;                   ///< of buckets for every rank; the worker's, like the next
  std::map<size_t, ddl::HomeReduction> at_owners_;  ///< the others, by bucket
  int64_t scratch_bytes_ = 0;                       ///< the most that a bucket needs
  std::vector<int64_t> uses_left_;
  int64_t batch_ = 0;
  bool begun_ = false;
  size_t to_start_;  ///< buckets that have not started: the first so many
  ddl::StagingMemory scratch_;
  std::deque<Flight> flights_;  ///< in the order of their start
  ddl::BackgroundQueue queue_;  ///< last: it ends before what it works on
};

}  // namespace spillway::kfac
