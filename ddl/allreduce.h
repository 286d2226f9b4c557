/// The sum or average of a vector over all ranks, level by level.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ddl/communicator.h"
#include "ddl/plan.h"

namespace spillway::ddl {

enum class Reduction : int64_t { sum, average };

struct AllreduceOptions {
  /// The vector goes through the levels in chunks of this size, which bounds the scratch memory. Smaller chunks stay in
  /// cache, larger ones cost fewer messages. 1 KiB to 1 GiB; the same on every rank.
  int64_t chunk_bytes = int64_t{4} << 20;

  /// Throws BadRequest naming the field, its value and the allowed range.
  void validate() const;
};

/// Allreduce of float32 over one communicator, which must outlive it. Keeps its plan and work lists, so that repeated
/// calls allocate nothing. Used by one thread at a time.
class Allreduce {
 public:
  explicit Allreduce(Communicator& comm, AllreduceOptions options = {});

  const Plan& plan() const noexcept { return plan_; }
  /// How many floats of scratch `reduce` needs for a vector of `count` elements; at most about one chunk.
  int64_t scratch_elements(int64_t count) const;

  /// Replaces `data` on every rank by the sum (average) over all ranks, in float32. Any length, any alignment of a
  /// float, the same length everywhere. The sum of an element is taken in rank order within each host, then in host
  /// order, wherever in the vector it stands: all ranks get the same bits, and so do all ways to cut vectors up.
  /// An average divides once, at the end. `scratch` holds scratch_elements(data.size()) floats or more. `signature` is
  /// anything else on which the callers must agree (shapes), hashed. Blocking.
  /// Cost per rank on hosts of L ranks, N hosts: 2(L-1)/L of the bytes within the host, 2(N-1)/(N·L) between hosts, and
  /// an agreement of ⌈log2 size⌉ small messages first.
  /// Throws CommError; `data` is then undefined. Throws BadRequest when `scratch` is too small.
  void reduce(std::span<float> data, Reduction reduction, std::span<float> scratch, uint64_t signature = 0);
  /// The same with own scratch, kept for the next call.
  void reduce(std::span<float> data, Reduction reduction, uint64_t signature = 0);

 private:
  void reduce_chunk(std::span<float> chunk, float divisor, std::span<float> scratch);
  void scatter_within_host(std::span<float> chunk, float divisor, std::span<float> scratch);
  void scatter_between_hosts(std::span<float> chunk, float divisor, std::span<float> scratch);
  void gather_between_hosts(std::span<float> chunk);
  void gather_within_host(std::span<float> chunk);
  void send(int peer, Tag tag, std::span<const float> floats);
  void receive(int peer, Tag tag, std::span<float> floats);
  void wait(const Stage& stage);

  Communicator& comm_;
  const AllreduceOptions options_;
  const Plan plan_;
  const int host_;
  const int local_;
  std::vector<Request> requests_;
  std::vector<const float*> terms_;
  std::vector<float> own_scratch_;
};

}  // namespace spillway::ddl
