/// The sum or average of a vector over all ranks, level by level.
#pragma once
#include <array>
#include <chrono>
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
  /// The vector goes through the levels in chunks of this size, one behind the other, so that every level has work at
  /// any time; scratch memory is two chunks at most. Smaller chunks overlap better and stay in cache, larger ones cost
  /// fewer messages. 1 KiB to 1 GiB; the same on every rank.
  int64_t chunk_bytes = int64_t{1} << 20;

  /// Throws BadRequest naming the field, its value and the allowed range.
  void validate() const;
};

/// What an Allreduce has done since it was made, on this rank.
struct AllreduceTotals {
  int64_t calls = 0;
  int64_t bytes = 0;                ///< of the vectors, not of the messages
  std::chrono::nanoseconds time{};  ///< within `reduce`, waiting for later ranks included
};

/// Allreduce of float32 over one communicator, which must outlive it. Keeps its plan and work lists, so that repeated
/// calls allocate nothing. Used by one thread at a time.
class Allreduce {
 public:
  explicit Allreduce(Communicator& comm, AllreduceOptions options = {});

  const Plan& plan() const noexcept { return plan_; }
  const AllreduceTotals& totals() const noexcept { return totals_; }
  /// How many floats of scratch `reduce` needs for a vector of `count` elements; at most about two chunks.
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
  /// A part of the vector on its way through the levels.
  struct Chunk {
    std::span<float> data;
    std::span<float> scratch;
    std::vector<Request> requests;  ///< of the stage it is in
  };
  /// A chunk's way: messages of a stage are posted in one step and awaited at the start of the next.
  static constexpr int kMostSteps = 5;
  int steps() const noexcept { return plan_.host_count() == 1 ? 3 : kMostSteps; }

  void run_pipeline(std::span<float> data, float divisor, std::span<float> scratch);
  void advance(Chunk& chunk, int step, float divisor);
  void post_scatter_within_host(Chunk& chunk);
  void sum_within_host(Chunk& chunk, float divisor);
  void post_scatter_between_hosts(Chunk& chunk);
  void sum_between_hosts(Chunk& chunk, float divisor);
  void post_gather_between_hosts(Chunk& chunk);
  void post_gather_within_host(Chunk& chunk);
  void send(Chunk& chunk, int peer, Tag tag, Range range);
  void receive(Chunk& chunk, int peer, Tag tag, std::span<float> floats);

  Communicator& comm_;
  const AllreduceOptions options_;
  const Plan plan_;
  const int host_;
  const int local_;
  AllreduceTotals totals_;
  std::array<Chunk, kMostSteps> chunks_;
  std::vector<const float*> terms_;
  std::vector<float> own_scratch_;
};

}  // namespace spillway::ddl
