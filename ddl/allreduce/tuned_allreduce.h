/// Allreduces with, for every size, the plan that suits it.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "ddl/allreduce/allreduce.h"
#include "ddl/allreduce/cost_model.h"

namespace spillway::ddl {

class Communicator;

/// The allreduces of one communicator, which must outlive it. Sums keep the order of ranks, so that the bits depend
/// neither on the size nor on the plan. Used by one thread at a time.
class TunedAllreduce {
 public:
  /// Takes `costs` as calibrate() found them, the same on every rank. Without any, all sizes use direct on every level.
  /// Throws BadRequest as Costs::validate does.
  explicit TunedAllreduce(Communicator& comm, std::optional<Costs> costs = std::nullopt);

  const std::optional<Costs>& costs() const noexcept { return costs_; }
  /// Returns the cost model's choice for so many bytes, rounded up to a power of two, and remembers it by that size.
  const Choice& choice(int64_t bytes);
  /// Returns by level the size of the pieces in which every choice sends messages; empty: messages are sent whole.
  std::vector<int64_t> segment_bytes() const { return costs_ ? ddl::segment_bytes(*costs_) : std::vector<int64_t>(); }
  /// Returns the Allreduce for so many bytes, which is made when it is first asked for.
  Allreduce& for_bytes(int64_t bytes);

  /// Returns scratch in bytes that is enough on this rank for `count` elements by choice(bytes), whatever the costs'
  /// numbers: the maximum over all candidates. A budget that was feasible with it stays so when links are measured
  /// anew.
  int64_t scratch_bytes(int64_t bytes, int64_t count, Element element);

  /// Returns the predicted time to reduce so many bytes of float32, and remembers it; 0 without costs. In simulated
  /// worlds of more than 128 ranks it is estimate_seconds().
  double predicted_seconds(int64_t bytes);
  /// Returns the size in which many bytes travel best while something else goes on. It is the smallest one that costs
  /// at most a tenth more per byte than eight times as much in one call. It lies between 1 MiB (a thread is woken for
  /// each) and 32 MiB. Without costs 4 MiB.
  int64_t bucket_bytes();

 private:
  Communicator& comm_;
  const std::optional<Costs> costs_;
  std::map<int64_t, Choice> choices_;
  std::map<int64_t, double> predicted_;
  std::map<int64_t, Allreduce> by_size_;
  std::map<std::tuple<int64_t, int64_t, Element>, int64_t> scratch_;
};

}  // namespace spillway::ddl
