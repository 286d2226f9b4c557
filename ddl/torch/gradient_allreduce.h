/// Gradients reduced over ranks while backward goes on.
#pragma once
#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/timeline.h"
#include "ddl/allreduce/allreduce.h"
#include "ddl/torch/comm.h"

namespace spillway {
class MessageListener;
}

namespace spillway::ddl {

/// The options for sending gradients.
struct GradientOptions {
  /// The size in bytes of the messages in which gradients travel together. 0: the size of
  /// TunedAllreduce::bucket_bytes(), which follows measured rates, as the floor of a budget then does; else 1 KiB to
  /// 1 GiB. Smaller messages leave earlier; larger ones cost less per byte. The same on every rank.
  int64_t bucket_bytes = 0;
  /// The maximum memory for copies of gradients under way. When more would be needed, backward waits for the oldest
  /// copy. With less than two buckets' memory it waits for each. Unlimited: as much as all gradients. The same on every
  /// rank.
  int64_t max_in_flight_bytes = kWhole;
  Reduction reduction = Reduction::average;

  /// Throws BadRequest naming the field, its value and the allowed range.
  void validate() const;
};

/// The steps, bytes and times of a GradientAllreduce since it was made, on this rank.
struct GradientTotals {
  int64_t steps = 0;
  int64_t bytes = 0;                   ///< bytes of gradients
  std::chrono::nanoseconds busy{};     ///< time within allreduces, waiting for later ranks included
  std::chrono::nanoseconds exposed{};  ///< part of that time for which the caller waited
};

/// A reduction of every parameter's gradient over all ranks, in buckets, in the order in which backward completes them.
/// Each bucket leaves as soon as it is complete, on a thread and a communicator of their own (Li et al. 2020, PyTorch
/// Distributed, §3.2):
///
///     GradientAllreduce gradients(model->parameters(), comm);
///     …
///     gradients.begin();
///     loss.backward();
///     gradients.finish();
///     optimizer.step();
///
/// A backward without begin() accumulates on this rank alone. The order of buckets is rank 0's in the first step. All
/// ranks get the same bits, those of allreduce_, whatever the buckets. When a gradient is missing on some ranks,
/// because their graphs did not reach the parameter, it counts as zero there and is made. When it is missing on all
/// ranks, it stays so.
/// A gradient under way exists only as its message, counted as staging. Its parameter has no gradient until finish(),
/// which makes it anew. Besides, one bucket and scratch of a few chunks are needed. Gradients are dense. Those of a GPU
/// are reduced on the host. They travel in the order of the current stream, and neither way makes the host wait for it.
/// The operators that it calls, and their order, depend on no timing. Used by one thread at a time (and autograd's,
/// within backward).
class GradientAllreduce {
 public:
  /// Prepares to reduce the gradients of `parameters`. Collective. Every rank gives parameters of the same types, sizes
  /// and strides, in the same order; one that is given several times counts once. Throws c10::Error for parameters that
  /// are not on one device, not dense or of a type that is not reduced; BadRequest; CommError.
  GradientAllreduce(const std::vector<at::Tensor>& parameters, Comm comm, GradientOptions options = {});
  /// Gives up a step that was begun and not finished: every rank then gets a CommError.
  ~GradientAllreduce();
  GradientAllreduce(const GradientAllreduce&) = delete;
  GradientAllreduce& operator=(const GradientAllreduce&) = delete;

  /// Begins a step. The next backward, and none after it until finish(), completes the gradients of the step. Throws
  /// c10::Error when the last step was not finished.
  void begin();
  /// Blocks until every gradient is reduced. Throws CommError; c10::Error without begin().
  void finish();

  /// Tells `observer` of each bucket's allreduce: its start, end and bytes, on the thread that sends it, before the
  /// gradients are taken. Call it outside begin() and finish().
  void observe(WorkerTimeline::Observer observer);

  /// Tells `listener`, which outlives this object, of each bucket: when it is handed over, and when it is needed.
  void listen(MessageListener& listener);

  /// True between begin() and finish().
  bool begun() const noexcept;
  int64_t bucket_bytes() const noexcept;
  int64_t buckets() const noexcept;
  const Plan& plan() const noexcept;
  GradientTotals totals() const;
  /// Returns the totals of the buckets' allreduces, valid once finish() has returned.
  const AllreduceTotals& allreduces() const noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace spillway::ddl
