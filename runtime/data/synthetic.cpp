#include "runtime/data/synthetic.h"

#include <ATen/ATen.h>

#include <utility>

#include "core/error.h"
#include "runtime/data/generator.h"
#include "runtime/data/phantom.h"
#include "runtime/data/preprocess.h"

namespace spillway::runtime {
SyntheticData::SyntheticData(std::string kind, int64_t cases, int64_t case_bytes)
    : kind_(std::move(kind)), cases_(cases), case_bytes_(case_bytes) {
  check_at_least(1, "cases", cases);
}

void SyntheticData::check_at_least(int64_t least, const char* field, int64_t value) {
  if (value < least)
    throw BadRequest(str("synthetic data: ", field, " is ", value, "; allowed is ", least, " or more"));
}

Batch SyntheticData::at(int64_t index) const {
  (void)name(index);  // checks the index
  return make(index);
}

std::string SyntheticData::name(int64_t index) const {
  TORCH_CHECK(index >= 0 && index < size(), "synthetic data: case ", index, " is outside 0 … ", size() - 1);
  return str(kind_, "_", index);
}

SyntheticVolumes::SyntheticVolumes(const Options& options)
    : SyntheticData("phantom", options.cases,
                    static_cast<int64_t>((kModalities.size() + kTumourLabels.size()) * sizeof(float)) *
                        voxel_count(options.shape)),
      options_(options) {
  check_multiple("synthetic data", options.shape, kShapeMultiple);
}

std::string SyntheticVolumes::name(int64_t index) const {
  (void)SyntheticData::name(index);  // checks the index
  return phantom_name(index);
}

Batch SyntheticVolumes::make(int64_t index) const {
  const Phantom phantom = make_phantom(options_.shape, options_.seed, index);
  std::array<at::Tensor, 4> scans;
  for (size_t m = 0; m < scans.size(); ++m) scans[m] = phantom.scans.select(0, m).to(at::kFloat);
  return assemble_case(scans, phantom.labels, options_.shape, name(index));
}

SyntheticVectors::SyntheticVectors(const Options& options)
    : SyntheticData("vector", options.cases,
                    options.features * static_cast<int64_t>(sizeof(float)) + static_cast<int64_t>(sizeof(int64_t))),
      options_(options) {
  check_at_least(1, "features", options.features);
  check_at_least(1, "classes", options.classes);
  // The stream is case −1 of the seed, because no vector draws from it.
  centers_ = at::randn({options.classes, options.features}, make_generator(options.seed, -1)).mul_(1.5);
}

Batch SyntheticVectors::make(int64_t index) const {
  const int64_t label = index % options_.classes;
  auto noise = at::randn({options_.features}, make_generator(options_.seed, index));
  return {(centers_.select(0, label) + noise).unsqueeze(0), at::full({1}, label, at::kLong)};
}

}  // namespace spillway::runtime
