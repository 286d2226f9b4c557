#include "kfac/early_reduction.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <span>
#include <utility>

#include "core/category.h"

namespace spillway::kfac {
namespace {

/// From the allocator, which counts it, but no storage, which could leave the device under a message.
struct Message {
  c10::DataPtr memory;
  std::span<float> floats;

  Message() = default;
  explicit Message(int64_t elements) {
    CategoryScope scope(Category::staging);
    const auto count = static_cast<size_t>(elements);
    memory = c10::GetCPUAllocator()->allocate(count * sizeof(float));
    floats = {static_cast<float*>(memory.get()), count};
  }
  std::span<std::byte> bytes() const { return std::as_writable_bytes(floats); }
};

}  // namespace

struct EarlyReduction::Flight {
  Message data, scratch;
  std::vector<ddl::HomePart> parts;
  std::unique_ptr<ddl::PendingReduction> reduction;
  bool everyone = true;
  bool gathering = false;

  at::Tensor packed() {
    return at::from_blob(data.floats.data(), {static_cast<int64_t>(data.floats.size())}, at::kFloat);
  }
  void gather() {
    reduction->gather(everyone, ddl::Reduction::sum);
    gathering = true;
  }
  // Blocks until it has arrived.
  void land() {
    reduction->wait();
    if (gathering) return;
    gather();
    reduction->wait();
  }
};

EarlyReduction::EarlyReduction(std::vector<FactorBucket> buckets, std::vector<Assignment> assignments, ddl::Comm comm)
    : buckets_(std::move(buckets)),
      assignments_(std::move(assignments)),
      comm_(std::move(comm)),
      to_start_(buckets_.size()) {}

EarlyReduction::~EarlyReduction() {
  try {
    for (auto& flight : flights_) flight->land();
  } catch (const std::exception&) {
    // The communicator has died and forgotten the messages.
  }
}

int64_t EarlyReduction::bytes() const {
  int64_t sum = 0;
  for (const auto& flight : flights_)
    sum += static_cast<int64_t>(flight->data.bytes().size() + flight->scratch.bytes().size());
  return sum;
}

void EarlyReduction::begin(std::vector<int64_t> uses, int64_t batch) {
  uses_left_ = std::move(uses);
  batch_ = batch;
  begun_ = true;
}

bool EarlyReduction::complete(size_t bucket) const {
  return std::all_of(uses_left_.begin() + static_cast<std::ptrdiff_t>(buckets_[bucket].begin),
                     uses_left_.begin() + static_cast<std::ptrdiff_t>(buckets_[bucket].end),
                     [](int64_t left) { return left == 0; });
}

void EarlyReduction::staged(size_t layer, std::vector<LayerFactors>& layers) {
  if (!begun_) return;
  --uses_left_[layer];
  while (to_start_ > 0 && complete(to_start_ - 1)) start_next(layers);
  advance();
}

void EarlyReduction::start_next(std::vector<LayerFactors>& layers) {
  const auto& bucket = buckets_[--to_start_];
  for (size_t l = bucket.begin; l < bucket.end; ++l) layers[l].finish(batch_);
  auto flight = std::make_unique<Flight>();
  flight->data = Message(bucket.elements);
  pack_weighted(bucket, layers, batch_, flight->packed());

  auto& communicator = *comm_->communicator;
  flight->everyone = assignments_[bucket.begin].home == FactorHome::everywhere;
  if (flight->everyone) {
    flight->parts = ddl::flat_parts(bucket.elements, communicator.size(), ddl::Element::float32);
  } else {
    const auto [ends, homes] = parts_of(bucket, layers, assignments_, FactorDtype::fp32);
    for (size_t i = 0; i < ends.size(); ++i)
      flight->parts.push_back({{i == 0 ? 0 : ends[i - 1], ends[i]}, static_cast<int>(homes[i])});
  }
  flight->scratch = Message(ddl::PendingReduction::scratch_bytes(communicator, ddl::Element::float32, flight->parts) /
                            static_cast<int64_t>(sizeof(float)));
  flight->reduction = std::make_unique<ddl::PendingReduction>(communicator, flight->data.bytes(), ddl::Element::float32,
                                                              flight->parts, flight->scratch.bytes());
  flights_.push_back(std::move(flight));
}

// In the order of their start: a later one is not gathered before an earlier one.
void EarlyReduction::advance() {
  for (auto& flight : flights_) {
    const bool arrived = flight->reduction->arrived();
    if (flight->gathering) continue;
    if (!arrived) return;
    flight->gather();
  }
}

void EarlyReduction::finish(size_t bucket, std::vector<LayerFactors>& layers) {
  while (to_start_ > bucket) start_next(layers);
  auto& flight = *flights_.front();
  flight.land();
  unpack_weighted(buckets_[bucket], layers, assignments_, comm_->communicator->rank(), flight.packed());
  flights_.pop_front();
  if (bucket > 0) return;
  begun_ = false;
  to_start_ = buckets_.size();
}

void EarlyReduction::discard(std::vector<LayerFactors>& layers) {
  for (size_t bucket = buckets_.size(); begun_ && bucket-- > 0;) finish(bucket, layers);
}

}  // namespace spillway::kfac
