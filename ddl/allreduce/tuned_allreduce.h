/// For every size the plan that suits it.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "ddl/allreduce/allreduce.h"
#include "ddl/allreduce/cost_model.h"
#include "ddl/comm/communicator.h"

namespace spillway::ddl {

/// The allreduces of one communicator, which must outlive it. Sums keep the order of ranks, so that the bits depend
/// neither on the size nor on the plan. Used by one thread at a time.
class TunedAllreduce {
 public:
  /// `costs`: as calibrate() found them, the same on every rank; without any, direct on every level for all sizes.
  /// Throws BadRequest as Costs::validate.
  explicit TunedAllreduce(Communicator& comm, std::optional<Costs> costs = std::nullopt);

  const std::optional<Costs>& costs() const noexcept { return costs_; }
  /// Returns the cost model's choice for so many bytes, rounded up to a power of two, and remembers it by that.
  const Choice& choice(int64_t bytes);
  /// By level, the pieces in which every choice sends messages; empty: whole.
  std::vector<int64_t> piece_bytes() const { return costs_ ? ddl::piece_bytes(*costs_) : std::vector<int64_t>(); }
  /// Made when it is first asked for.
  Allreduce& for_bytes(int64_t bytes);

  /// The size in which many bytes travel best while something else goes on: the smallest one, from 1 MiB (a thread is
  /// woken for each) to 32 MiB, that costs no more than a tenth more per byte than eight times as much in one go.
  /// Without costs 4 MiB.
  int64_t bucket_bytes();

 private:
  Communicator& comm_;
  const std::optional<Costs> costs_;
  std::map<int64_t, Choice> choices_;
  std::map<int64_t, Allreduce> by_size_;
};

}  // namespace spillway::ddl
