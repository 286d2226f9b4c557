#include <ATen/ATen.h>

#include <vector>

#include "runtime/data/generator.h"
#include "runtime/data/synthetic.h"

namespace spillway::runtime {

SyntheticCurves::SyntheticCurves(const Options& options)
    : SyntheticData("curve", options.cases, options.edge * options.edge * static_cast<int64_t>(sizeof(float))),
      options_(options) {
  check_at_least(4, "edge", options.edge);
}

Batch SyntheticCurves::make(int64_t index) const {
  const int64_t edge = options_.edge, dots = 4 * edge;
  const double width = static_cast<double>(edge) / 28;  // pen width in pixels
  // The three points lie in the unit square, away from its border; the middle one lies on the curve at t = ½.
  const auto points = at::rand({3, 2}, make_generator(options_.seed, index)).mul_(0.7).add_(0.15);
  const auto first = points[0], last = points[2], control = points[1] * 2 - (first + last) / 2;
  const auto t = at::linspace(0, 1, dots).unsqueeze(1);
  const auto curve = ((1 - t).square() * first + 2 * t * (1 - t) * control + t.square() * last) * edge;  // [dots, 2]
  const auto middle = at::arange(edge).add(0.5);
  const auto down = (middle.unsqueeze(1) - curve.select(1, 0)).square();    // [edge, dots]
  const auto across = (middle.unsqueeze(1) - curve.select(1, 1)).square();  // [edge, dots]
  std::vector<at::Tensor> nearest;  // row by row, because all at once takes edge times the memory
  for (int64_t row = 0; row < edge; ++row) nearest.push_back((across + down[row]).amin(1));
  const auto distance = at::stack(nearest).sqrt_();
  return {at::sigmoid((width - distance) / (0.35 * width)).view({1, edge * edge}), at::empty({1, 0})};
}

}  // namespace spillway::runtime
