/// The reduction of factors over ranks while backward goes on.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ddl/allreduce/owner_reduction.h"
#include "ddl/allreduce/tuned_allreduce.h"
#include "ddl/comm/background_queue.h"
#include "ddl/torch/comm.h"
#include "ddl/torch/staging_memory.h"
#include "kfac/comm/reduce_factors.h"

namespace spillway {
class MessageListener;
}

namespace spillway::kfac {

/// A reduction of one step's buckets from the last to the first, the order in which backward meets them. A bucket
/// starts when all its layers' factors are complete and the buckets behind it have started. It goes on as a job of this
/// object's own queue (ddl/comm/background_queue.h), and ends in finish(). In 16 bits the job begins with an exchange
/// of the numbers that the ranks saw (kfac/comm/factor_scaling.h). The order of messages, of operators and of sums
/// depends on no timing, so the bits are those of reduce_factors().
///
/// The factors travel from memory of LibTorch's allocator. A budget counts this memory (Category::staging) and no pager
/// moves it, whatever the messages' timing. It holds a bucket's triangles from the bucket's start to its finish(), in
/// float32 also when they travel in 16 bits. It also holds the scratch of the bucket that needs the most, a few chunks.
/// The scratch lasts from the first bucket's start to the last one's finish(). With 16 bits, each bucket synchronizes
/// with the host once. Used by one thread at a time.
class OverlappedReduction {
 public:
  /// Collective. Throws ddl::CommError.
  OverlappedReduction(std::vector<FactorBucket> buckets, const std::vector<LayerFactors>& layers,
                      std::vector<Assignment> assignments, FactorDtype dtype, ddl::Comm comm);
  /// Gives up a step that was begun and not finished: every rank then gets a CommError.
  ~OverlappedReduction();
  OverlappedReduction(const OverlappedReduction&) = delete;
  OverlappedReduction& operator=(const OverlappedReduction&) = delete;

  /// Returns the bytes of the triangles in transit and of the scratch.
  int64_t bytes() const;

  /// Tells `observer` of each bucket's reduction (ddl::BackgroundQueue::Observer). Call it outside begin() and
  /// finish().
  void observe(ddl::BackgroundQueue::Observer observer) { queue_.observe(std::move(observer)); }

  /// Tells `listener`, which outlives this object, of each bucket: when it is handed over, and when it is needed.
  void listen(MessageListener& listener) { listener_ = &listener; }

  /// Announces a backward of `batch` samples that will stage each layer uses[layer] times.
  void begin(std::vector<int64_t> uses, int64_t batch);
  /// Counts a use of `layer` that has been staged, and starts the buckets that are complete. Waits for no message.
  void staged(size_t layer, std::vector<LayerFactors>& layers);
  /// Blocks until the bucket's factors are the global batch's. Every rank finishes all buckets, from the last to the
  /// first. Throws ddl::CommError.
  void finish(size_t bucket, std::vector<LayerFactors>& layers);
  /// Ends a step whose factors are not wanted. Finishes every bucket of a step that was begun, because other ranks may
  /// have started it. Every rank calls it.
  void discard(std::vector<LayerFactors>& layers);

 private:
  /// A bucket under way. The worker thread owns it until the ticket is done.
  struct BucketInFlight {
    ddl::StagingMemory memory;        ///< float32 triangles; they travel from its front
    std::optional<SeenFactors> seen;  ///< only in 16 bits
    std::vector<Scaling> scalings;
    Ticket ticket;
    int64_t message = -1;  ///< number with the listener
  };

  /// Makes the objects that one bucket's reduction needs. Returns its scratch in bytes.
  int64_t prepare(size_t bucket, const std::vector<LayerFactors>& layers);
  bool complete(size_t bucket) const;
  at::Tensor packed(size_t bucket, const BucketInFlight& flight, FactorDtype type) const;
  void start_next(std::vector<LayerFactors>& layers);
  /// Runs the worker thread's part. Calls no operator, because its place in a step would depend on when messages come.
  void reduce(size_t bucket, BucketInFlight& flight);
  void scale(BucketInFlight& flight);
  /// Returns the time that the bucket is predicted to take the links.
  double predicted_seconds(size_t bucket);

  const std::vector<FactorBucket> buckets_;
  const std::vector<Assignment> assignments_;
  const FactorDtype dtype_;
  const ddl::Comm comm_;
  const std::shared_ptr<ddl::Communicator> queue_comm_;
  ddl::TunedAllreduce allreduce_;                    ///< reduces the buckets that every rank keeps; worker thread only
  std::map<size_t, ddl::OwnerReduction> at_owners_;  ///< reduce the other buckets, by bucket; worker thread only
  int64_t scratch_bytes_ = 0;                        ///< scratch of the bucket that needs the most
  std::vector<int64_t> uses_left_;
  int64_t batch_ = 0;
  bool begun_ = false;
  size_t to_start_;  ///< number of buckets that have not started, which are the first ones
  MessageListener* listener_ = nullptr;
  ddl::StagingMemory scratch_;
  std::deque<BucketInFlight> flights_;  ///< in the order of their start
  ddl::BackgroundQueue queue_;          ///< last, because it must end before the members that it works on
};

}  // namespace spillway::kfac
