/// The sum, average, maximum or minimum of a vector over all ranks, level by level.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "ddl/allreduce/plan.h"
#include "ddl/comm/element.h"

namespace spillway::ddl {

class Communicator;

/// The calls, bytes and times of an Allreduce since it was made, on this rank.
struct AllreduceTotals {
  int64_t calls = 0;
  int64_t bytes = 0;                ///< bytes of the vectors, not of the messages
  std::chrono::nanoseconds time{};  ///< time within `reduce`, waiting for later ranks included
  RoundTimes rounds;                ///< parts of that time
};

/// An allreduce over one communicator, which must outlive it, by one plan. It keeps programs and work lists, so that
/// repeated calls allocate nothing. Used by one thread at a time.
class Allreduce {
 public:
  /// Takes the same plan over as many ranks, and the same options, on every rank. Throws BadRequest for a plan of
  /// another size.
  Allreduce(Communicator& comm, Plan plan, AllreduceOptions options = {});
  /// Uses the direct algorithm on every level of the communicator, so sums keep the ranks' order.
  explicit Allreduce(Communicator& comm, AllreduceOptions options = {});
  ~Allreduce();

  const Plan& plan() const noexcept;
  const AllreduceOptions& options() const noexcept;
  const AllreduceTotals& totals() const noexcept;
  /// Returns a few lines for people: the work of each level in an allreduce of `count` elements. After calls, which
  /// must have had as many, they also tell how long it took. Cost: ranks times levels.
  std::string describe(int64_t count, Element element = Element::float32) const;
  /// Returns the bytes of scratch that `reduce` needs on this rank: those of some chunks, for any count.
  int64_t scratch_bytes(int64_t count, Element element);

  /// Replaces the output on every rank by the reduction of all ranks' inputs. The vector has any length, the same on
  /// every rank, and any alignment of an element. All ranks get the same bits. Plan::keeps_order() tells whether they
  /// depend on the length and on an element's place in the vector. `scratch`: scratch_bytes() or more, aligned for 8
  /// bytes. `signature` is a hash of anything else on which the callers must agree (layouts), and `detail` says of it
  /// what a message can. Blocking. Cost: that of the plan, and an agreement of ⌈log2 size⌉ small messages beside its
  /// first round.
  /// Throws CommError; the output is then undefined. Throws BadRequest when `scratch` is too small, or input and output
  /// do not have the same size.
  void reduce(const ReduceBuffers& vector, Reduction reduction, std::span<std::byte> scratch, uint64_t signature = 0,
              std::string_view detail = {});
  /// Reduces with scratch of its own, which is kept for the next call.
  void reduce(const ReduceBuffers& vector, Reduction reduction, uint64_t signature = 0);
  /// Reduces a vector of float32 in place.
  void reduce(std::span<float> data, Reduction reduction) { reduce(in_place(data, Element::float32), reduction); }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace spillway::ddl
