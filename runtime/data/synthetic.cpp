#include "runtime/data/synthetic.h"

#include <ATen/ATen.h>

#include "core/error.h"
#include "runtime/data/generator.h"
#include "runtime/data/phantom.h"
#include "runtime/data/preprocess.h"

namespace spillway {
namespace {

void check_at_least_one(const char* field, int64_t value) {
  if (value < 1) throw BadRequest(str("synthetic data: ", field, " is ", value, "; allowed is 1 or more"));
}

void check_index(int64_t index, int64_t size) {
  TORCH_CHECK(index >= 0 && index < size, "synthetic data: case ", index, " is outside 0 … ", size - 1);
}

}  // namespace

SyntheticVolumes::SyntheticVolumes(const Options& options) : options_(options) {
  check_at_least_one("cases", options.cases);
  check_multiple("synthetic data", options.shape, kShapeMultiple);
}

std::string SyntheticVolumes::name(int64_t index) const {
  check_index(index, size());
  return phantom_name(index);
}

int64_t SyntheticVolumes::case_bytes() const {
  return static_cast<int64_t>((kModalities.size() + kTumourLabels.size()) * sizeof(float)) *
         voxel_count(options_.shape);
}

Batch SyntheticVolumes::at(int64_t index) const {
  check_index(index, size());
  const Phantom phantom = make_phantom(options_.shape, options_.seed, index);
  std::array<at::Tensor, 4> scans;
  for (size_t m = 0; m < scans.size(); ++m) scans[m] = phantom.scans.select(0, m).to(at::kFloat);
  return assemble_case(scans, phantom.labels, options_.shape, name(index));
}

SyntheticVectors::SyntheticVectors(const Options& options) : options_(options) {
  check_at_least_one("features", options.features);
  check_at_least_one("classes", options.classes);
  check_at_least_one("cases", options.cases);
  // The stream is case −1 of the seed, because no vector draws from it.
  centers_ = at::randn({options.classes, options.features}, make_generator(options.seed, -1)).mul_(1.5);
}

std::string SyntheticVectors::name(int64_t index) const {
  check_index(index, size());
  return str("vector_", index);
}

int64_t SyntheticVectors::case_bytes() const {
  return options_.features * static_cast<int64_t>(sizeof(float)) + static_cast<int64_t>(sizeof(int64_t));
}

Batch SyntheticVectors::at(int64_t index) const {
  check_index(index, size());
  const int64_t label = index % options_.classes;
  auto noise = at::randn({options_.features}, make_generator(options_.seed, index));
  return {(centers_.select(0, label) + noise).unsqueeze(0), at::full({1}, label, at::kLong)};
}

}  // namespace spillway
