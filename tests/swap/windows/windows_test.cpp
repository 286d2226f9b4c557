// Tests of operators that run in windows. They are compared with the whole operator under every budget down to the
// floor, and with everything evicted after every window.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/normalization.h>

#include <cstring>
#include <functional>
#include <map>
#include <optional>

#include "core/device/cpu_device.h"
#include "core/error.h"
#include "swap/gate/operator_observer.h"
#include "swap/schedule/step_trace.h"
#include "swap/session.h"
#include "swap/windows/tensor_layout.h"
#include "swap/windows/window_rules.h"
#include "tests/support/checking_observers.h"

namespace spillway {
using namespace swap;
namespace {

namespace nn = torch::nn;
using Tensors = std::vector<at::Tensor>;
using testing::EvictEverything;
using testing::SchemaChecker;

constexpr int64_t kSplit = 64 << 10;

/// A counter of how often each operator's kernel ran.
class CountKernels final : public OperatorObserver {
 public:
  void before(const c10::OperatorHandle& op, const torch::jit::Stack&) override { ++kernels[op.schema().name()]; }
  std::map<std::string, int> kernels;
};

struct Outcome {
  Tensors results;
  int64_t floor_bytes = 0;
  SessionStats stats;
};

/// Returns a copy in memory that no ledger counts, so that one run's results take no room from the next.
at::Tensor outside(const at::Tensor& tensor) {
  auto* bytes = new std::vector<char>(tensor.nbytes());
  if (tensor.nbytes()) std::memcpy(bytes->data(), tensor.const_data_ptr(), tensor.nbytes());
  return at::from_blob(
      bytes->data(), tensor.sizes(), tensor.strides(), [bytes](void*) { delete bytes; },
      tensor.options().requires_grad(false));
}

/// Runs `work` in two steps from the same seed. The second follows a schedule, and its results are returned.
Outcome run(const std::function<Tensors()>& work, std::optional<SessionOptions> options) {
  CpuDevice::instance();
  at::globalContext().setDeterministicAlgorithms(true, false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  Outcome outcome;
  std::optional<Session> session;
  if (options) session.emplace(*options);
  for (int i = 0; i < 2; ++i) {
    outcome.results.clear();
    at::manual_seed(1);
    std::optional<Session::Step> step;
    if (session) step.emplace(session->step());
    outcome.results = work();
  }
  if (session) {
    outcome.floor_bytes = session->trace()->floor_bytes();
    outcome.stats = session->stats();
    session.reset();
  }
  for (at::Tensor& tensor : outcome.results) tensor = outside(tensor);
  return outcome;
}

void expect_equal(const Tensors& a, const Tensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].strides(), b[i].strides()) << "tensor " << i;
    EXPECT_TRUE(at::equal(a[i], b[i])) << "tensor " << i;
  }
}

void expect_close(const Tensors& a, const Tensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].sizes(), b[i].sizes()) << "tensor " << i;
    const double scale = b[i].abs().max().item<double>();
    EXPECT_LE((a[i] - b[i]).abs().max().item<double>(), 1e-5 * scale) << "tensor " << i;
  }
}

enum class Bits { equal, close };

/// Compares whole operators with split ones, also with everything evicted, and at the floor. Each of `operators` must
/// have been split.
void expect_split(const std::vector<std::string>& operators, Bits bits, const std::function<Tensors()>& work) {
  const Outcome plain = run(work, std::nullopt);
  const Outcome whole = run(work, SessionOptions{.split_bytes = kUnlimitedBytes});
  auto whole_kernels = std::make_shared<CountKernels>(), kernels = std::make_shared<CountKernels>();
  run(work, SessionOptions{.split_bytes = kUnlimitedBytes, .observer = whole_kernels});
  const Outcome split = run(work, SessionOptions{.split_bytes = kSplit, .observer = kernels});
  for (const std::string& name : operators) EXPECT_GT(kernels->kernels[name], whole_kernels->kernels[name]) << name;
  expect_equal(whole.results, plain.results);
  if (bits == Bits::equal)
    expect_equal(split.results, plain.results);
  else
    expect_close(split.results, plain.results);
  EXPECT_TRUE(at::equal(split.results[0], plain.results[0])) << "going forward, bits are equal";

  EXPECT_LT(split.floor_bytes, whole.floor_bytes);
  for (bool prefetch : {true, false})
    for (int64_t budget : {split.floor_bytes, split.floor_bytes * 5 / 4, split.floor_bytes * 2}) {
      SCOPED_TRACE(str("budget ", budget, " of floor ", split.floor_bytes, ", prefetch ", prefetch));
      const Outcome tight = run(
          work, SessionOptions{
                    .budget_bytes = budget, .prefetch = prefetch, .small_page_bytes = 1 << 12, .split_bytes = kSplit});
      expect_equal(tight.results, split.results);
      EXPECT_LE(tight.stats.peak_bytes, budget);
    }
  const Outcome mark_last_copy =
      run(work,
          SessionOptions{.min_page_bytes = 1, .split_bytes = kSplit, .observer = std::make_shared<EvictEverything>()});
  expect_equal(mark_last_copy.results, split.results);
  auto checker = std::make_shared<SchemaChecker>();
  run(work, SessionOptions{.min_page_bytes = 1, .split_bytes = kSplit, .observer = checker});
  EXPECT_TRUE(checker->liars().empty()) << *checker->liars().begin() << " writes what its schema does not say";
}

/// Returns the results of a forward function and of its backward for a random gradient.
Tensors with_gradients(const at::Tensor& y, const Tensors& leaves) {
  y.backward(at::randn_like(y));
  Tensors all{y.detach()};
  for (const at::Tensor& leaf : leaves) all.push_back(leaf.grad());
  return all;
}

at::Tensor leaf(at::IntArrayRef sizes) {
  return at::randn(sizes).requires_grad_();
}

TEST(WindowsTest, ElementwiseOperatorsForwardAndBackward) {
  expect_split({"aten::relu", "aten::threshold_backward", "aten::sigmoid", "aten::sigmoid_backward", "aten::mul",
                "aten::add", "aten::leaky_relu", "aten::leaky_relu_backward"},
               Bits::equal, [] {
                 auto x = leaf({2, 8, 16, 16, 16}), y = leaf({2, 8, 16, 16, 16});
                 auto z = at::relu(x) * at::sigmoid(y) + at::leaky_relu(x, 0.01) * 2 + 1;
                 return with_gradients(z, {x, y});
               });
}

TEST(WindowsTest, OperatorsInPlaceWithOneTensorTwiceAndSingleElements) {
  expect_split({"aten::relu_", "aten::add_", "aten::mul_", "aten::copy_", "aten::fill_", "aten::zero_"}, Bits::equal,
               [] {
                 auto x = at::randn({65'000}), y = at::randn({65'000});
                 x.mul_(x);
                 x.add_(y, 0.5);
                 auto r = x - 1;
                 at::relu_(r);
                 y.mul_(at::full({1}, 3.0)).mul_(at::scalar_tensor(0.5));
                 auto z = at::empty({65'000});
                 z.copy_(x);
                 z.copy_(at::arange(65'000));
                 auto f = at::empty({65'000}).fill_(7);
                 f.slice(0, 100, 60'000).zero_();
                 at::add_out(x, x, y);
                 return Tensors{x, y, r, z, f};
               });
}

TEST(WindowsTest, OtherTypesAndResultsOfAnotherType) {
  expect_split({"aten::ge", "aten::where", "aten::_to_copy", "aten::add"}, Bits::equal, [] {
    auto x = at::randn({33, 1024}), y = at::randn({33, 1024});
    auto m = x.ge(0.25);
    auto d = x.to(at::kDouble) + y.to(at::kDouble);
    return Tensors{m, at::where(m, x, y), d, at::add(x, d), at::add(m, m)};
  });
}

/// Checks a conjugate that is computed into a tensor that only the operator's arguments own.
TEST(WindowsTest, ArgumentsThatEndWithTheCall) {
  expect_split({"aten::mul"}, Bits::equal, [] {
    auto a = at::randn({16'000}, at::kComplexFloat), b = at::randn({16'000}, at::kComplexFloat);
    return Tensors{at::view_as_real(b * a.conj()).clone()};
  });
}

TEST(WindowsTest, ExpandedGradientsOfMeans) {
  expect_split({"aten::mul"}, Bits::equal, [] {
    auto x = leaf({40'000});
    (x * x).mean().backward();
    return Tensors{x.grad()};
  });
}

TEST(WindowsTest, LayoutsThatTensorsShare) {
  expect_split({"aten::add", "aten::mul_"}, Bits::equal, [] {
    auto x = at::randn({2, 8, 12, 16, 16}).contiguous(at::MemoryFormat::ChannelsLast3d);
    auto y = at::randn({2, 8, 12, 16, 16}).contiguous(at::MemoryFormat::ChannelsLast3d);
    auto z = x + y;
    z.mul_(y);
    auto t = at::randn({300, 200}).t(), u = at::randn({300, 200}).t();
    return Tensors{z, t + u, x.slice(0, 0, 1) + y.slice(0, 1, 2)};
  });
}

TEST(WindowsTest, OnAGpuAWindowIsViewedOnlyWhereACopyWouldBeAlignedTheSame) {
  const at::Tensor odd = at::empty({4, 27, 27, 27}), even = at::empty({4, 32, 32, 32});
  EXPECT_FALSE(is_aligned_as_a_copy(odd[1], c10::kCUDA));
  EXPECT_TRUE(is_aligned_as_a_copy(odd[0], c10::kCUDA));
  EXPECT_TRUE(is_aligned_as_a_copy(odd[1], c10::kCPU)) << "its kernels do not choose by alignment";
  EXPECT_TRUE(is_aligned_as_a_copy(even[3], c10::kCUDA));
  EXPECT_TRUE(is_aligned_as_a_copy(even.to(at::kHalf)[1], c10::kCUDA));
  EXPECT_FALSE(is_aligned_as_a_copy(even.flatten()[1], c10::kCUDA));
}

TEST(WindowsTest, WhatCannotBeSplitRunsWhole) {
  auto kernels = std::make_shared<CountKernels>();
  auto work = [] {
    auto x = at::rand({300, 200});
    auto z = x.t() + at::ones({200, 300});                            // other strides
    auto w = x.slice(0, 0, 1) * at::ones({300, 1});                   // broadcast
    EXPECT_THROW(x.view(-1).mul_(x[0][0]), c10::Error);               // an element of the written tensor
    EXPECT_THROW(x.slice(0, 1).add_(x.slice(0, 0, -1)), c10::Error);  // a part of the written tensor
    return Tensors{x, z, w};
  };
  const Outcome plain = run(work, std::nullopt);
  const Outcome split = run(work, SessionOptions{.split_bytes = kSplit, .observer = kernels});
  expect_equal(split.results, plain.results);
  for (const char* name : {"aten::mul", "aten::mul_", "aten::add", "aten::add_"})
    EXPECT_EQ(kernels->kernels[name], 2) << name;
}

TEST(WindowsTest, BatchNormOfOneAndOfSeveralSamples) {
  for (int64_t batch : {1, 3})
    expect_split({"aten::native_batch_norm", "aten::native_batch_norm_backward"}, Bits::equal, [batch] {
      nn::BatchNorm3d norm(12);
      auto x = leaf({batch, 12, 8, 16, 16});
      Tensors results = with_gradients(norm(x), {x, norm->weight, norm->bias});
      results.push_back(norm->running_mean.clone());
      results.push_back(norm->running_var.clone());
      norm->eval();
      auto v = leaf({batch, 12, 8, 16, 16});
      for (at::Tensor& t : with_gradients(norm(v), {v})) results.push_back(t);
      return results;
    });
}

TEST(WindowsTest, GroupNormAndInstanceNorm) {
  for (int64_t batch : {1, 2})
    expect_split({"aten::native_group_norm", "aten::native_group_norm_backward", "aten::native_batch_norm"},
                 Bits::equal, [batch] {
                   nn::GroupNorm norm(nn::GroupNormOptions(4, 12));
                   nn::InstanceNorm3d instance(nn::InstanceNorm3dOptions(12).affine(true));
                   auto x = leaf({batch, 12, 8, 16, 16});
                   return with_gradients(instance(norm(x)), {x, norm->weight, norm->bias, instance->weight});
                 });
}

TEST(WindowsTest, PoolsAndNearestUpsampling) {
  expect_split({"aten::max_pool3d_with_indices", "aten::max_pool3d_with_indices_backward", "aten::upsample_nearest3d",
                "aten::upsample_nearest3d_backward", "aten::avg_pool3d", "aten::avg_pool3d_backward"},
               Bits::equal, [] {
                 auto x = leaf({2, 6, 16, 16, 16});
                 auto pooled = at::max_pool3d(x, 2);
                 auto up = at::upsample_nearest3d(pooled, {16, 16, 16});
                 return with_gradients(at::avg_pool3d(up, 3, 1, 1), {x});
               });
  expect_split({"aten::max_pool2d_with_indices", "aten::max_pool2d_with_indices_backward", "aten::upsample_nearest2d",
                "aten::upsample_nearest2d_backward"},
               Bits::equal, [] {
                 auto x = leaf({2, 12, 48, 48});
                 return with_gradients(at::upsample_nearest2d(at::max_pool2d(x, 3, 2, 1), {48, 48}), {x});
               });
}

TEST(WindowsTest, ConcatenationAndCopies) {
  expect_split({}, Bits::equal, [] {
    Tensors results;
    for (int64_t batch : {1, 2}) {
      auto x = leaf({batch, 5, 16, 16, 16}), y = leaf({batch, 3, 16, 16, 16});
      auto z = at::cat({x, y}, 1);
      for (at::Tensor& t : with_gradients(z.clone(), {x, y})) results.push_back(t);
      results.push_back(at::cat({x.detach(), x.detach(), x.detach()}, -1));
    }
    results.push_back(at::randn({2, 8, 16, 16, 16}).contiguous(at::MemoryFormat::ChannelsLast3d).clone());
    return results;
  });
}

struct ConvolutionCase {
  const char* name;
  int64_t batch, in, out, edge, kernel, stride, padding, dilation = 1, groups = 1;
  bool channels_last = false, transposed = false;
};

void PrintTo(const ConvolutionCase& c, std::ostream* out) {
  *out << c.name;
}

struct ConvolutionWindowsTest : ::testing::TestWithParam<ConvolutionCase> {};

TEST_P(ConvolutionWindowsTest, AreCloseToTheWhole) {
  const ConvolutionCase c = GetParam();
  expect_split({"aten::convolution", "aten::convolution_backward"}, Bits::close, [c] {
    auto x = at::randn({c.batch, c.in, c.edge, c.edge, c.edge});
    if (c.channels_last) x = x.contiguous(at::MemoryFormat::ChannelsLast3d);
    x.requires_grad_();
    auto w = (c.transposed ? at::randn({c.in, c.out, c.kernel, c.kernel, c.kernel})
                           : at::randn({c.out, c.in / c.groups, c.kernel, c.kernel, c.kernel}))
                 .requires_grad_();
    auto b = leaf({c.out});
    auto y = c.transposed ? at::conv_transpose3d(x, w, b, c.stride, c.padding)
                          : at::conv3d(x, w, b, c.stride, c.padding, c.dilation, c.groups);
    return with_gradients(y, {x, w, b});
  });
}

INSTANTIATE_TEST_SUITE_P(Cases, ConvolutionWindowsTest,
                         ::testing::Values(ConvolutionCase{"plain", 1, 8, 6, 24, 3, 1, 1},
                                           ConvolutionCase{"pointwise", 1, 8, 8, 24, 1, 1, 0},
                                           ConvolutionCase{"strided", 1, 8, 6, 24, 3, 2, 1},
                                           ConvolutionCase{"stride_beyond_the_kernel", 1, 8, 6, 24, 1, 3, 0},
                                           ConvolutionCase{"stride_with_a_rest", 1, 6, 6, 23, 2, 3, 0},
                                           ConvolutionCase{"dilated", 1, 6, 6, 24, 3, 1, 2, 2},
                                           ConvolutionCase{"wide_padding", 1, 6, 6, 20, 3, 1, 3},
                                           ConvolutionCase{"grouped", 2, 8, 8, 20, 3, 1, 1, 1, 4},
                                           ConvolutionCase{"samples", 6, 4, 4, 10, 3, 1, 1},
                                           ConvolutionCase{"unfolded", 1, 4, 4, 16, 3, 1, 1},
                                           ConvolutionCase{"channels_last", 1, 8, 6, 24, 3, 1, 1, 1, 1, true},
                                           ConvolutionCase{"transposed", 4, 4, 4, 10, 2, 2, 0, 1, 1, false, true}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(WindowsTest, ConvolutionsOfImagesAndSignals) {
  expect_split({"aten::convolution", "aten::convolution_backward"}, Bits::close, [] {
    auto x = leaf({2, 8, 64, 48}), w = leaf({8, 8, 3, 3}), b = leaf({8});
    return with_gradients(at::conv2d(x, w, b, 1, 1), {x, w, b});
  });
  expect_split({"aten::convolution", "aten::convolution_backward"}, Bits::close, [] {
    auto x = leaf({2, 4, 6000}), w = leaf({4, 4, 5});
    return with_gradients(at::conv1d(x, w, {}, 1, 2), {x, w});
  });
}

TEST(WindowsTest, GradientsOfInputAndWeightApart) {
  for (int64_t batch : {1, 2})
    expect_split({"aten::convolution_backward"}, batch == 1 ? Bits::equal : Bits::close, [batch] {
      auto x = leaf({batch, 16, 6, 6, 6}), w = leaf({16, 16, 1, 4, 4}), b = leaf({16});
      return with_gradients(at::conv3d(x, w, b, 1, {0, 2, 2}), {x, w, b});
    });
}

TEST(WindowsTest, GradientsThatNobodyWantsAreNotMade) {
  expect_split({"aten::convolution_backward"}, Bits::close, [] {
    auto x = at::randn({1, 8, 24, 24, 24}), w = leaf({8, 8, 3, 3, 3});
    auto v = leaf({1, 8, 24, 24, 24}), u = at::randn({8, 8, 3, 3, 3});
    Tensors results = with_gradients(at::conv3d(x, w, {}, 1, 1), {w});
    for (at::Tensor& t : with_gradients(at::conv3d(v, u, {}, 1, 1), {v})) results.push_back(t);
    return results;
  });
}

}  // namespace
}  // namespace spillway
