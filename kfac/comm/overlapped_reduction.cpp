#include "kfac/comm/overlapped_reduction.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include "core/message_listener.h"
#include "ddl/allreduce/tuned_allreduce.h"
#include "ddl/comm/collectives.h"
#include "ddl/comm/communicator.h"

namespace spillway::kfac {
namespace {

ddl::Element element_of(FactorDtype dtype) {
  if (dtype == FactorDtype::bf16) return ddl::Element::bfloat16;
  return dtype == FactorDtype::fp16 ? ddl::Element::float16 : ddl::Element::float32;
}

std::vector<ddl::OwnedPart> owned_parts(const BucketParts& bucket) {
  std::vector<ddl::OwnedPart> parts;
  for (size_t i = 0; i < bucket.ends.size(); ++i) {
    const int owner = bucket.homes[i];
    parts.push_back({{i == 0 ? 0 : bucket.ends[i - 1], bucket.ends[i]}, owner});
  }
  return parts;
}

}  // namespace

OverlappedReduction::OverlappedReduction(std::vector<FactorBucket> buckets, const std::vector<LayerFactors>& layers,
                                         std::vector<Assignment> assignments, FactorDtype dtype, ddl::Comm comm)
    : buckets_(std::move(buckets)),
      assignments_(std::move(assignments)),
      dtype_(dtype),
      comm_(std::move(comm)),
      queue_comm_(comm_->communicator->duplicate()),
      allreduce_(*queue_comm_, comm_->allreduce->costs()),
      to_start_(buckets_.size()),
      queue_(queue_comm_, "factors") {
  for (size_t b = 0; b < buckets_.size(); ++b) scratch_bytes_ = std::max(scratch_bytes_, prepare(b, layers));
}

int64_t OverlappedReduction::prepare(size_t bucket, const std::vector<LayerFactors>& layers) {
  const auto& [members, elements] = buckets_[bucket];
  const auto element = element_of(dtype_);
  const int64_t bytes = elements * bytes_of(dtype_);
  if (assignments_[members.front()].home == FactorScope::everywhere)
    return allreduce_.scratch_bytes(bytes, elements, element);
  auto parts = owned_parts(parts_of(buckets_[bucket], layers, assignments_, dtype_));
  auto& at_owner =
      at_owners_.try_emplace(bucket, *queue_comm_, elements, element, std::move(parts), allreduce_.segment_bytes())
          .first->second;
  return at_owner.reduce_scratch_bytes();
}

OverlappedReduction::~OverlappedReduction() {
  if (begun_) queue_.give_up("was interrupted before it had finished its factors");
}

int64_t OverlappedReduction::bytes() const {
  int64_t sum = scratch_.bytes.size();
  for (const auto& flight : flights_) sum += flight.memory.bytes.size();
  return sum;
}

void OverlappedReduction::begin(std::vector<int64_t> uses, int64_t batch) {
  uses_left_ = std::move(uses);
  batch_ = batch;
  begun_ = true;
}

bool OverlappedReduction::complete(size_t bucket) const {
  const auto& layers = buckets_[bucket].layers;
  return std::all_of(layers.begin(), layers.end(), [&](size_t layer) { return uses_left_[layer] == 0; });
}

void OverlappedReduction::staged(size_t layer, std::vector<LayerFactors>& layers) {
  if (!begun_) return;
  TORCH_CHECK(uses_left_[layer] > 0, "[kfac] a layer was used again after its factors had been sent; ",
              "overlap_factors is for layers whose uses are all seen before backward");
  --uses_left_[layer];
  while (to_start_ > 0 && complete(to_start_ - 1)) start_next(layers);
}

at::Tensor OverlappedReduction::packed(size_t bucket, const BucketInFlight& flight, FactorDtype type) const {
  return flight.memory.vector(buckets_[bucket].elements, scalar_type(type));
}

void OverlappedReduction::start_next(std::vector<LayerFactors>& layers) {
  if (to_start_ == buckets_.size()) scratch_ = ddl::StagingMemory(scratch_bytes_);
  const size_t index = to_start_ - 1;
  const auto& bucket = buckets_[index];
  for (size_t l : bucket.layers) layers[l].finish(batch_);
  BucketInFlight flight;
  flight.memory = ddl::StagingMemory(bucket.elements * sizeof(float));
  if (dtype_ == FactorDtype::fp32) {
    pack_weighted(bucket, layers, batch_, packed(index, flight, dtype_));
  } else {
    pack_unscaled(bucket, layers, packed(index, flight, FactorDtype::fp32));
    flight.seen.emplace(bucket, layers, batch_);
  }
  flights_.push_back(std::move(flight));
  to_start_ = index;
  flights_.back().ticket =
      queue_.submit([this, index, &sent = flights_.back()](ddl::Communicator&) { reduce(index, sent); }, {},
                    bucket.elements * bytes_of(dtype_));
  if (listener_) flights_.back().message = listener_->sent(predicted_seconds(index));
}

double OverlappedReduction::predicted_seconds(size_t bucket) {
  const double both_halves = comm_->allreduce->predicted_seconds(buckets_[bucket].elements * bytes_of(dtype_));
  return at_owners_.contains(bucket) ? both_halves / 2 : both_halves;
}

void OverlappedReduction::reduce(size_t bucket, BucketInFlight& flight) {
  if (flight.seen) scale(flight);
  const auto reduction = flight.seen ? ddl::Reduction::average : ddl::Reduction::sum;
  const int64_t bytes = buckets_[bucket].elements * bytes_of(dtype_);
  const auto sent = flight.memory.bytes.first(bytes);
  if (const auto owners = at_owners_.find(bucket); owners != at_owners_.end())
    owners->second.reduce(sent, reduction, scratch_.bytes);
  else
    allreduce_.for_bytes(bytes).reduce(ddl::in_place(sent, element_of(dtype_)), reduction, scratch_.bytes);
}

void OverlappedReduction::scale(BucketInFlight& flight) {
  const auto& numbers = flight.seen->numbers();
  std::vector<double> of_all(numbers.size() * queue_comm_->size());
  ddl::allgather(*queue_comm_, std::as_bytes(std::span(numbers)), std::as_writable_bytes(std::span(of_all)));
  flight.scalings = flight.seen->scalings(of_all, queue_comm_->rank());
  if (queue_comm_->is_simulated()) return;
  round_in_place(flight.memory.bytes, flight.scalings, dtype_);
}

void OverlappedReduction::finish(size_t bucket, std::vector<LayerFactors>& layers) {
  while (to_start_ > bucket) start_next(layers);
  const BucketInFlight& flight = flights_.front();
  if (listener_) listener_->awaited(flight.message);
  flight.ticket.wait();
  const auto reduced = packed(bucket, flight, dtype_);
  const int64_t rank = comm_->communicator->rank();
  if (dtype_ == FactorDtype::fp32)
    unpack_weighted(buckets_[bucket], layers, assignments_, rank, reduced);
  else
    unpack_scaled(buckets_[bucket], layers, assignments_, rank, reduced, flight.scalings);
  flights_.pop_front();
  if (bucket > 0) return;
  scratch_ = {};
  begun_ = false;
  to_start_ = buckets_.size();
}

void OverlappedReduction::discard(std::vector<LayerFactors>& layers) {
  for (size_t bucket = buckets_.size(); begun_ && bucket-- > 0;) finish(bucket, layers);
}

}  // namespace spillway::kfac
