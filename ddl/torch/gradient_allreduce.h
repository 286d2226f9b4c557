/// Gradients reduced over ranks while backward goes on.
#pragma once
#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "ddl/allreduce/allreduce.h"
#include "ddl/allreduce/gradient_buckets.h"
#include "ddl/comm/background_queue.h"
#include "ddl/torch/dense_tensor.h"
#include "ddl/torch/operators.h"

namespace spillway::ddl {

struct GradientOptions {
  /// Gradients travel together in messages of so many bytes; 0: as TunedAllreduce::bucket_bytes() says, else 1 KiB to 1
  /// GiB. Smaller ones leave earlier, larger ones cost less each. The same on every rank.
  int64_t bucket_bytes = 0;
  /// The most memory for copies of gradients under way. Where more would be, backward waits for the oldest; with less
  /// than two buckets' it waits for each. Unlimited: as much as all gradients. The same on every rank.
  int64_t most_bytes = kWhole;
  Reduction reduction = Reduction::average;

  /// Throws BadRequest naming the field, its value and the allowed range.
  void validate() const;
};

/// What a GradientAllreduce has done since it was made, on this rank.
struct GradientTotals {
  int64_t steps = 0;
  int64_t bytes = 0;                   ///< of gradients
  std::chrono::nanoseconds busy{};     ///< within allreduces, waiting for later ranks included
  std::chrono::nanoseconds exposed{};  ///< of that, what its caller waited for
};

/// Reduces every parameter's gradient over all ranks, in buckets, in the order in which backward completes them, each
/// as soon as it is complete, on a thread and a communicator of their own (Li et al. 2020, PyTorch Distributed, §3.2):
///
///     GradientAllreduce gradients(model->parameters(), comm);
///     …
///     gradients.begin();
///     loss.backward();
///     gradients.finish();
///     optimizer.step();
///
/// Backwards without begin() accumulate on this rank alone. The order is rank 0's in the first step. All ranks get the
/// same bits, those of allreduce_, whatever the buckets. Where a gradient is missing on some ranks, because their
/// graphs did not reach the parameter, it counts as zero there and is made; where it is missing on all ranks, it stays
/// so. A gradient under way is its message alone, counted as staging: its parameter has none until finish(), which
/// makes it anew; besides, one bucket and scratch of a few chunks are needed. Dense gradients. Those of a card are
/// reduced on the host: they travel in the order of the current stream, and neither way makes the host wait for it. The
/// operators that it calls, and their order, depend on no timing. Used by one thread at a time (and autograd's, within
/// backward).
class GradientAllreduce {
 public:
  /// Collective. Every rank gives parameters of the same types, sizes and strides, in the same order; one that is given
  /// several times counts once. Throws c10::Error for parameters that are not on one device, not dense or of a type
  /// that is not reduced; BadRequest; CommError.
  GradientAllreduce(const std::vector<at::Tensor>& parameters, Comm comm, GradientOptions options = {});
  /// A step that was begun and not finished is given up: every rank then gets a CommError.
  ~GradientAllreduce();
  GradientAllreduce(const GradientAllreduce&) = delete;
  GradientAllreduce& operator=(const GradientAllreduce&) = delete;

  /// The backward that follows, and none after it until finish(), completes the gradients of a step. Throws c10::Error
  /// when the last step was not finished.
  void begin();
  /// Blocks until every gradient is reduced. Throws CommError; c10::Error without begin().
  void finish();

  int64_t bucket_bytes() const noexcept { return bucket_bytes_; }
  int64_t buckets() const noexcept { return static_cast<int64_t>(buckets_.size()); }
  const Plan& plan() const noexcept { return allreduce_.plan(); }
  GradientTotals totals() const;
  /// Those of buckets, once finish() has returned.
  const AllreduceTotals& allreduces() const noexcept { return allreduce_.totals(); }

 private:
  /// A bucket under way. Its bytes are the worker's until the ticket is done.
  struct Flight {
    size_t bucket;
    StagingMemory memory;
    Ticket ticket;
  };

  void watch(size_t parameter);
  void completed(size_t parameter);
  bool complete(const GradientBucket& bucket) const;
  void start_next();
  at::Tensor packed(const GradientBucket& bucket, const StagingMemory& memory) const;
  void pack(const GradientBucket& bucket, const at::Tensor& into);
  /// Waits for the oldest and takes its results, but for gradients that are missing here.
  void land();
  /// Copies results to the gradients that are missing here, or else to the others.
  void unpack(const Flight& flight, bool missing);
  /// Makes those that others have.
  void make_missing();
  /// After the first step: rank 0's order on all ranks.
  void reorder();
  void lay_out(const std::vector<size_t>& order);

  const std::vector<at::Tensor> parameters_;
  const Comm comm_;
  const GradientOptions options_;
  const at::Device device_;
  const uint64_t signature_;
  const int64_t bucket_bytes_;
  const std::shared_ptr<Communicator> queue_comm_;
  Allreduce allreduce_;  ///< over that; the worker's while a ticket is open
  std::vector<GradientBucket> buckets_;
  std::vector<std::shared_ptr<void>> hooks_;  ///< take themselves off the parameters
  bool begun_ = false;
  std::vector<bool> is_complete_;   ///< by parameter: in this step
  std::vector<bool> is_missing_;    ///< by parameter: on this rank, as finish() saw it
  std::vector<bool> has_landed_;    ///< by parameter: some of its elements are reduced
  std::vector<size_t> completion_;  ///< parameters in the order of this step
  size_t next_ = 0;                 ///< bucket to start
  int64_t bytes_under_way_ = 0;
  std::deque<Flight> flights_;
  std::deque<Flight> landed_;  ///< with results for gradients that are missing here
  GradientTotals totals_;
  StagingMemory scratch_;
  BackgroundQueue queue_;  ///< last: it ends before what it works on
};

}  // namespace spillway::ddl
