// Tests of kernels that compute no values: what they allocate, and what they refuse.
#include "swap/shapes/shape_kernels.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/ledger.h"
#include "swap/schedule/step_trace.h"
#include "swap/session.h"

namespace spillway::swap {
namespace {

SessionOptions dry() {
  SessionOptions options;
  options.split_bytes = kUnlimitedBytes;
  options.kernels = make_shape_kernels();
  return options;
}

TEST(ShapeKernelsTest, ComputeWithTensorsThatFitNoMemory) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  Session session(dry());
  const auto step = session.step();
  const at::Tensor a = at::empty({4 * kGiB / 4}), b = a.mul(2).add_(a).relu();
  EXPECT_EQ(b.sizes(), a.sizes());
  EXPECT_EQ(b.sum().dim(), 0);
  EXPECT_GE(session.ledger().peak_bytes(), 2 * 4 * kGiB);
}

TEST(ShapeKernelsTest, LeaveValuesAlone) {
  at::Tensor a = at::ones({8});
  {
    Session session(dry());
    a.add_(1);
    a.mul_(at::full({8}, 5));
  }
  EXPECT_TRUE(a.equal(at::ones({8})));
}

/// Returns results of operators that find their shapes in each of the ways that there are.
std::vector<at::Tensor> many_results() {
  const at::Tensor image = at::ones({2, 3, 9, 9}).contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor volume = at::ones({1, 2, 7, 7, 7}), numbers = at::arange(12).view({3, 4});
  const auto pooled = at::max_pool3d_with_indices(volume, 3, 2, 1, 1, /*ceil_mode=*/true);
  const auto solved = at::linalg_eigh(at::eye(5));
  return {std::get<0>(pooled),
          std::get<1>(pooled),
          std::get<0>(solved),
          std::get<1>(solved),
          std::get<1>(at::max(numbers, 1)),
          at::max(numbers),
          std::get<0>(at::min(image, 2)),
          at::cat({image, image}, 1),
          at::relu(image),
          numbers.t().to(at::kDouble),
          numbers.div(2),
          at::where(numbers.gt(3), numbers, 0.5),
          numbers.index_select(1, at::tensor({0, 2, 2})),
          numbers.logical_and(numbers.select(0, 0)),
          at::layer_norm(image, {9, 9}),
          at::log_sigmoid(image)};
}

TEST(ShapeKernelsTest, GiveTheSizesStridesAndTypesOfRealResults) {
  const auto real = many_results();
  Session session(dry());
  const auto shapes = many_results();
  for (size_t i = 0; i < real.size(); ++i) {
    EXPECT_EQ(shapes[i].sizes(), real[i].sizes()) << i;
    EXPECT_EQ(shapes[i].strides(), real[i].strides()) << i;
    EXPECT_EQ(shapes[i].scalar_type(), real[i].scalar_type()) << i;
  }
}

TEST(ShapeKernelsTest, NameTheOperatorThatHasNoRule) {
  Session session(dry());
  const at::Tensor a = at::ones({8});
  try {
    (void)at::histc(a);
    FAIL() << "histc has no rule";
  } catch (const BadRequest& error) {
    EXPECT_NE(std::string(error.what()).find("aten::histc"), std::string::npos) << error.what();
  }
}

struct Shape {
  int64_t samples, in, out, edge, taps, stride;
  int dims;
};

/// Returns the bytes that a convolution holds at once, and those that its backward holds.
std::pair<int64_t, int64_t> own_bytes(const Shape& s, SessionOptions options) {
  options.split_bytes = kUnlimitedBytes;
  Session session(std::move(options));
  std::vector<int64_t> sizes{s.samples, s.in}, kernel{s.out, s.in};
  sizes.resize(2 + s.dims, s.edge);
  kernel.resize(2 + s.dims, s.taps);
  const at::Tensor input = at::ones(sizes), weight = at::ones(kernel), bias = at::ones({s.out});
  const std::vector<int64_t> stride(s.dims, s.stride), padding(s.dims, s.taps / 2), one(s.dims, 1), none(s.dims, 0);
  const auto run = [&] { return at::convolution(input, weight, bias, stride, padding, one, false, none, 1); };
  const at::Tensor gradient = at::ones_like(run());
  auto step = session.step();
  (void)run();
  (void)at::convolution_backward(gradient, input, weight, at::IntArrayRef({s.out}), stride, padding, one, false, none,
                                 1, {true, true, true});
  step.finish();
  const StepTrace& trace = *session.trace();
  return {trace.operators.at(0).own_bytes, trace.operators.at(1).own_bytes};
}

TEST(ConvolutionScratchTest, IsThatOfTheKernels) {
  constexpr Shape kShapes[]{{1, 4, 16, 40, 3, 1, 3},    {1, 16, 16, 40, 3, 1, 3}, {1, 24, 12, 40, 3, 1, 3},
                            {2, 1, 7, 24, 1, 1, 3},     {2, 8, 3, 24, 3, 1, 3},   {1, 16, 32, 40, 3, 2, 3},
                            {1, 3, 64, 32, 7, 1, 2},    {1, 64, 64, 32, 1, 1, 2}, {16, 33, 17, 32, 3, 1, 2},
                            {16, 64, 128, 32, 1, 2, 2}, {1, 4, 8, 16, 1, 1, 3},   {1, 4, 4, 16, 3, 1, 2}};
  for (const Shape& s : kShapes) {
    SCOPED_TRACE(
        str(s.samples, " x ", s.in, " -> ", s.out, ", edge ", s.edge, ", ", s.taps, " taps, stride ", s.stride));
    const auto [forward, backward] = own_bytes(s, {});
    const auto [dry_forward, dry_backward] = own_bytes(s, dry());
    EXPECT_EQ(dry_forward, forward);
    EXPECT_GE(dry_backward, backward);
    EXPECT_LE(dry_backward, backward * 3 / 2 + (128 << 10));
  }
}

}  // namespace
}  // namespace spillway::swap
