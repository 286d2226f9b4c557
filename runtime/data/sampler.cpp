#include "runtime/data/sampler.h"

#include <algorithm>
#include <random>
#include <stdexcept>

namespace spillway::runtime {

Sampler::Sampler(std::vector<int64_t> cases, int64_t batch, int rank, int world, uint64_t seed)
    : cases_(std::move(cases)), batch_(batch), rank_(rank), world_(world), seed_(seed), position_(cases_.size()) {
  if (cases_.empty()) throw std::invalid_argument("[sampler] there are no cases to train on");
}

std::vector<int64_t> Sampler::next() {
  std::vector<int64_t> own;
  for (int64_t i = 0; i < batch_ * world_; ++i) {
    const int64_t index = draw();
    if (i / batch_ == rank_) own.push_back(index);
  }
  return own;
}

void Sampler::skip(int64_t cases) {
  for (int64_t i = 0; i < cases; ++i) draw();
}

int64_t Sampler::steps_per_epoch(int64_t micro_batches) const {
  const int64_t per_step = batch_ * world_ * micro_batches;
  return (std::ssize(cases_) + per_step - 1) / per_step;
}

int64_t Sampler::draw() {
  if (position_ == cases_.size()) {
    position_ = 0;
    std::mt19937_64 random(seed_ * 1'000'003 + pass_++);
    // Fisher–Yates is written out, because std::shuffle may differ between standard libraries.
    for (size_t i = cases_.size(); i > 1; --i) std::swap(cases_[i - 1], cases_[random() % i]);
  }
  return cases_[position_++];
}

}  // namespace spillway::runtime
