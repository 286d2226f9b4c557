/// The sum, average, maximum or minimum of a vector over all ranks, level by level.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ddl/allreduce/executor.h"
#include "ddl/allreduce/plan.h"
#include "ddl/comm/communicator.h"
#include "ddl/comm/element.h"

namespace spillway::ddl {

/// What an Allreduce has done since it was made, on this rank.
struct AllreduceTotals {
  int64_t calls = 0;
  int64_t bytes = 0;                ///< of the vectors, not of the messages
  std::chrono::nanoseconds time{};  ///< within `reduce`, waiting for later ranks included
  RoundTimes rounds;                ///< of that time
};

/// Allreduce over one communicator, which must outlive it, by one plan. Keeps programs and work lists, so that repeated
/// calls allocate nothing. Used by one thread at a time.
class Allreduce {
 public:
  /// Every rank gives the same plan over as many ranks, and options; throws BadRequest for a plan of another size.
  Allreduce(Communicator& comm, Plan plan, AllreduceOptions options = {});
  /// Direct on every level of the communicator: sums keep the ranks' order.
  explicit Allreduce(Communicator& comm, AllreduceOptions options = {});

  const Plan& plan() const noexcept { return plan_; }
  const AllreduceTotals& totals() const noexcept { return totals_; }
  /// Of scratch that `reduce` needs on this rank: chunks, whatever the count.
  int64_t scratch_bytes(int64_t count, Element element);

  /// Replaces the output on every rank by the reduction of all ranks' inputs. Any length, the same everywhere; any
  /// alignment of an element. All ranks get the same bits; whether they depend on the length and on where in the vector
  /// an element stands, Plan::keeps_order() tells. `scratch`: scratch_bytes() or more, aligned for 8 bytes. `signature`
  /// is anything else on which the callers must agree (shapes), hashed. Blocking. Cost: that of the plan, and an
  /// agreement of ⌈log2 size⌉ small messages beside its first round.
  /// Throws CommError; the output is then undefined. Throws BadRequest when `scratch` is too small, or input and output
  /// do not have the same size.
  void reduce(const Vector& vector, Reduction reduction, std::span<std::byte> scratch, uint64_t signature = 0);
  /// The same with own scratch, kept for the next call.
  void reduce(const Vector& vector, Reduction reduction, uint64_t signature = 0);
  /// Of float32, in place.
  void reduce(std::span<float> data, Reduction reduction) { reduce(in_place(data, Element::float32), reduction); }

 private:
  const Program& program(int64_t count, Element element);
  Executor::Programs programs(Element element);

  Communicator& comm_;
  const Plan plan_;
  const std::string name_;
  Executor executor_;
  AllreduceTotals totals_;
  std::map<std::pair<int64_t, Element>, Program> programs_;
  std::vector<std::byte> own_scratch_;
};

}  // namespace spillway::ddl
