#include <ATen/ATen.h>

#include "runtime/data/generator.h"
#include "runtime/data/synthetic.h"

namespace spillway::runtime {

SyntheticImages::SyntheticImages(const Options& options)
    : SyntheticData("image", options.cases,
                    3 * options.edge * options.edge * static_cast<int64_t>(sizeof(float)) +
                        static_cast<int64_t>(sizeof(int64_t))),
      options_(options) {
  check_at_least(1, "edge", options.edge);
  check_at_least(1, "classes", options.classes);
  // The stream is case −1 of the seed, because no image draws from it.
  patterns_ = at::randn({options.classes, 3, 8, 8}, make_generator(options.seed, -1));
}

Batch SyntheticImages::make(int64_t index) const {
  const int64_t label = index % options_.classes, edge = options_.edge;
  const at::Tensor pattern = at::upsample_bilinear2d(patterns_.narrow(0, label, 1), {edge, edge}, false);
  return {pattern + at::randn({1, 3, edge, edge}, make_generator(options_.seed, index)),
          at::full({1}, label, at::kLong)};
}

}  // namespace spillway::runtime
