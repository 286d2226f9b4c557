#include "kfac/early_reduction.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>

#include "ddl/collectives.h"
#include "ddl/tensors.h"

namespace spillway::kfac {
namespace {

ddl::Element element_of(FactorDtype dtype) {
  if (dtype == FactorDtype::bf16) return ddl::Element::bfloat16;
  return dtype == FactorDtype::fp16 ? ddl::Element::float16 : ddl::Element::float32;
}

}  // namespace

/// A bucket under way. In 16 bits it waits as float32 triangles until every rank has told what it saw: scaling them is
/// then plain arithmetic on memory that nobody else sees, and no operator, whose place in a step would depend on when
/// the others' numbers came.
struct EarlyReduction::Flight {
  enum class Stage { announcing, sending, gathering };

  ddl::Communicator& comm;
  const FactorDtype dtype;
  const int64_t elements;
  const bool everyone;
  const std::vector<ddl::HomePart> parts;
  ddl::StagingMemory data;     ///< `elements` of float32, or in its front of 16 bits
  ddl::StagingMemory scratch;  ///< where it does not fit behind the 16 bits

  std::optional<SeenFactors> seen;
  std::vector<double> seen_by_all;
  std::optional<ddl::PendingAllgather> announcement;
  std::vector<Scaling> scalings;

  Stage stage = Stage::sending;
  std::optional<ddl::PendingReduction> reduction;

  Flight(ddl::Communicator& comm, FactorDtype dtype, int64_t elements, bool everyone, std::vector<ddl::HomePart> parts)
      : comm(comm), dtype(dtype), elements(elements), everyone(everyone), parts(std::move(parts)) {
    data = ddl::StagingMemory(elements * static_cast<int64_t>(sizeof(float)));
    if (scratch_bytes() > room_behind()) scratch = ddl::StagingMemory(scratch_bytes());
  }

  int64_t bytes() const { return static_cast<int64_t>(data.bytes.size() + scratch.bytes.size()); }
  at::Tensor packed(FactorDtype type) { return at::from_blob(data.bytes.data(), {elements}, scalar_type(type)); }

  void announce(SeenFactors factors) {
    stage = Stage::announcing;
    seen = std::move(factors);
    seen_by_all.resize(seen->numbers().size() * static_cast<size_t>(comm.size()));
    announcement.emplace(comm, std::as_bytes(std::span(seen->numbers())),
                         std::as_writable_bytes(std::span(seen_by_all)));
  }
  void send() {
    stage = Stage::sending;
    const auto memory = scratch.bytes.empty() ? data.bytes.subspan(sent_bytes()) : scratch.bytes;
    reduction.emplace(comm, data.bytes.first(sent_bytes()), element_of(dtype), parts, memory);
  }
  bool arrived() { return stage == Stage::announcing ? announcement->arrived() : reduction->arrived(); }
  void wait() { stage == Stage::announcing ? announcement->wait() : reduction->wait(); }
  // Once it has arrived.
  void next() {
    if (stage == Stage::announcing) {
      scalings = seen->scalings(seen_by_all, comm.rank());
      round_in_place(data.bytes, scalings, dtype);
      send();
    } else {
      reduction->gather(everyone, dtype == FactorDtype::fp32 ? ddl::Reduction::sum : ddl::Reduction::average);
      stage = Stage::gathering;
    }
  }
  // Blocks until nothing is left to come.
  void land() {
    for (; stage != Stage::gathering; next()) wait();
    wait();
  }

 private:
  size_t sent_bytes() const { return static_cast<size_t>(elements * bytes_of(dtype)); }
  int64_t scratch_bytes() const { return ddl::PendingReduction::scratch_bytes(comm, element_of(dtype), parts); }
  int64_t room_behind() const { return static_cast<int64_t>(data.bytes.size() - sent_bytes()); }
};

EarlyReduction::EarlyReduction(std::vector<FactorBucket> buckets, std::vector<Assignment> assignments,
                               FactorDtype dtype, ddl::Comm comm)
    : buckets_(std::move(buckets)),
      assignments_(std::move(assignments)),
      dtype_(dtype),
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
  for (const auto& flight : flights_) sum += flight->bytes();
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
  auto& communicator = *comm_->communicator;
  const bool everyone = assignments_[bucket.begin].home == FactorHome::everywhere;
  auto parts = everyone ? ddl::flat_parts(bucket.elements, communicator.size(), element_of(dtype_))
                        : owners_parts(bucket, layers);
  auto flight = std::make_unique<Flight>(communicator, dtype_, bucket.elements, everyone, std::move(parts));
  if (dtype_ == FactorDtype::fp32) {
    pack_weighted(bucket, layers, batch_, flight->packed(dtype_));
    flight->send();
  } else {
    pack_unscaled(bucket, layers, flight->packed(FactorDtype::fp32));
    flight->announce(SeenFactors(bucket, layers, batch_));
  }
  flights_.push_back(std::move(flight));
}

std::vector<ddl::HomePart> EarlyReduction::owners_parts(const FactorBucket& bucket,
                                                        const std::vector<LayerFactors>& layers) const {
  std::vector<ddl::HomePart> parts;
  const auto [ends, homes] = parts_of(bucket, layers, assignments_, dtype_);
  for (size_t i = 0; i < ends.size(); ++i)
    parts.push_back({{i == 0 ? 0 : ends[i - 1], ends[i]}, static_cast<int>(homes[i])});
  return parts;
}

// In the order of their start: a later one never enters a stage before an earlier one.
void EarlyReduction::advance() {
  auto ahead = Flight::Stage::gathering;
  for (auto& flight : flights_) {
    while (flight->arrived() && flight->stage < ahead) flight->next();
    ahead = flight->stage;
  }
}

void EarlyReduction::finish(size_t bucket, std::vector<LayerFactors>& layers) {
  while (to_start_ > bucket) start_next(layers);
  auto& flight = *flights_.front();
  flight.land();
  const int64_t rank = comm_->communicator->rank();
  if (dtype_ == FactorDtype::fp32)
    unpack_weighted(buckets_[bucket], layers, assignments_, rank, flight.packed(dtype_));
  else
    unpack_scaled(buckets_[bucket], layers, assignments_, rank, flight.packed(dtype_), flight.scalings);
  flights_.pop_front();
  if (bucket > 0) return;
  begun_ = false;
  to_start_ = buckets_.size();
}

void EarlyReduction::discard(std::vector<LayerFactors>& layers) {
  for (size_t bucket = buckets_.size(); begun_ && bucket-- > 0;) finish(bucket, layers);
}

}  // namespace spillway::kfac
