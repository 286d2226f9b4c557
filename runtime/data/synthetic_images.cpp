#include "runtime/data/synthetic_images.h"

#include <ATen/ATen.h>

#include "core/error.h"
#include "runtime/data/generator.h"

namespace spillway {

SyntheticImages::SyntheticImages(const Options& options) : options_(options) {
  auto at_least_one = [](const char* field, int64_t value) {
    if (value < 1) throw BadRequest(str("synthetic data: ", field, " is ", value, "; allowed is 1 or more"));
  };
  at_least_one("edge", options.edge);
  at_least_one("classes", options.classes);
  at_least_one("cases", options.cases);
  // The stream is case −1 of the seed, because no image draws from it.
  patterns_ = at::randn({options.classes, 3, 8, 8}, make_generator(options.seed, -1));
}

std::string SyntheticImages::name(int64_t index) const {
  TORCH_CHECK(index >= 0 && index < size(), "synthetic data: case ", index, " is outside 0 … ", size() - 1);
  return str("image_", index);
}

int64_t SyntheticImages::case_bytes() const {
  return 3 * options_.edge * options_.edge * static_cast<int64_t>(sizeof(float)) +
         static_cast<int64_t>(sizeof(int64_t));
}

Batch SyntheticImages::at(int64_t index) const {
  (void)name(index);  // checks the index
  const int64_t label = index % options_.classes, edge = options_.edge;
  const at::Tensor pattern = at::upsample_bilinear2d(patterns_.narrow(0, label, 1), {edge, edge}, false);
  return {pattern + at::randn({1, 3, edge, edge}, make_generator(options_.seed, index)),
          at::full({1}, label, at::kLong)};
}

}  // namespace spillway
