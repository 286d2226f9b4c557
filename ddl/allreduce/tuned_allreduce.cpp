#include "ddl/allreduce/tuned_allreduce.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "ddl/comm/communicator.h"

namespace spillway::ddl {
namespace {

constexpr int64_t kMinBucketBytes = int64_t{1} << 20;
constexpr int64_t kMaxBucketBytes = int64_t{32} << 20;
constexpr int64_t kBucketBytesWithoutCosts = int64_t{4} << 20;
/// The size from which plans no longer change.
constexpr int64_t kMaxBytes = int64_t{256} << 20;

/// The maximum number of sizes whose scratch is remembered.
constexpr size_t kMaxSizes = 256;

/// The most ranks of a simulated world whose plans are weighed. Beyond, that takes longer than a simulation is worth.
constexpr int kWeighedRanks = 128;

bool is_too_large(const Communicator& comm) {
  return comm.is_simulated() && comm.size() > kWeighedRanks;
}

int64_t rounded(int64_t bytes) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::clamp<int64_t>(bytes, 1, kMaxBytes))));
}

}  // namespace

TunedAllreduce::TunedAllreduce(Communicator& comm, std::optional<Costs> costs)
    : comm_(comm), costs_((costs ? costs->validate(comm.levels()) : void(), std::move(costs))) {}

const Choice& TunedAllreduce::choice(int64_t bytes) {
  const int64_t size = costs_ ? rounded(bytes) : 0;
  const auto known = choices_.find(size);
  if (known != choices_.end()) return known->second;
  const bool weighs = costs_ && !is_too_large(comm_);
  Choice best = weighs ? choose(comm_.levels(), size, *costs_, /*keep_order=*/true) : Choice{Plan(comm_.levels())};
  return choices_.emplace(size, std::move(best)).first->second;
}

Allreduce& TunedAllreduce::for_bytes(int64_t bytes) {
  const int64_t size = costs_ ? rounded(bytes) : 0;
  const auto known = by_size_.find(size);
  if (known != by_size_.end()) return known->second;
  const Choice& best = choice(bytes);
  return by_size_
      .emplace(std::piecewise_construct, std::forward_as_tuple(size),
               std::forward_as_tuple(comm_, best.plan, best.options))
      .first->second;
}

int64_t TunedAllreduce::scratch_bytes(int64_t bytes, int64_t count, Element element) {
  if (!costs_ || is_too_large(comm_)) return for_bytes(bytes).scratch_bytes(count, element);
  const std::tuple key{rounded(bytes), count, element};
  if (const auto known = scratch_.find(key); known != scratch_.end()) return known->second;
  if (scratch_.size() >= kMaxSizes) scratch_.clear();
  int64_t most = 0;
  for (const Plan& plan : candidate_plans(comm_.levels(), rounded(bytes), /*keep_order=*/true))
    for (const int64_t chunk : candidate_chunks(*costs_))
      most = std::max(most, Allreduce(comm_, plan, {.chunk_bytes = chunk}).scratch_bytes(count, element));
  return scratch_[key] = most;
}

double TunedAllreduce::predicted_seconds(int64_t bytes) {
  if (!costs_ || bytes <= 0 || comm_.size() == 1) return 0;
  if (const auto known = predicted_.find(bytes); known != predicted_.end()) return known->second;
  const int64_t elements = std::max<int64_t>(1, bytes / element_bytes(Element::float32));
  return predicted_[bytes] = is_too_large(comm_) ? estimate_seconds(comm_.levels(), bytes, *costs_)
                                                 : predict_seconds(choice(bytes), elements, Element::float32, *costs_);
}

int64_t TunedAllreduce::bucket_bytes() {
  if (!costs_ || comm_.size() == 1) return kBucketBytesWithoutCosts;
  const auto seconds_per_byte = [&](int64_t bytes) { return predicted_seconds(bytes) / static_cast<double>(bytes); };
  int64_t bytes = kMinBucketBytes;
  while (bytes < kMaxBucketBytes && seconds_per_byte(bytes) > 1.1 * seconds_per_byte(8 * bytes)) bytes *= 2;
  return bytes;
}

}  // namespace spillway::ddl
