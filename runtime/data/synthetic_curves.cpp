#include "runtime/data/synthetic_curves.h"

#include <ATen/ATen.h>

#include <vector>

#include "core/error.h"
#include "runtime/data/generator.h"

namespace spillway {

SyntheticCurves::SyntheticCurves(const Options& options) : options_(options) {
  auto at_least = [](int64_t least, const char* field, int64_t value) {
    if (value < least)
      throw BadRequest(str("synthetic data: ", field, " is ", value, "; allowed is ", least, " or more"));
  };
  at_least(4, "edge", options.edge);
  at_least(1, "cases", options.cases);
}

std::string SyntheticCurves::name(int64_t index) const {
  TORCH_CHECK(index >= 0 && index < size(), "synthetic data: case ", index, " is outside 0 … ", size() - 1);
  return str("curve_", index);
}

int64_t SyntheticCurves::case_bytes() const {
  return options_.edge * options_.edge * static_cast<int64_t>(sizeof(float));
}

Batch SyntheticCurves::at(int64_t index) const {
  (void)name(index);  // checks the index
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

}  // namespace spillway
