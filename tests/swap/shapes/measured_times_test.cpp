// Tests of the times of a dry run: where they come from, and which calls are measured.
#include "swap/shapes/measured_times.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "swap/schedule/step_trace.h"
#include "swap/session.h"
#include "swap/shapes/shape_kernels.h"

namespace spillway::swap {
namespace {

SessionOptions dry(std::shared_ptr<KernelTimes> times) {
  SessionOptions options;
  options.split_bytes = kUnlimitedBytes;
  options.kernels = make_shape_kernels(std::move(times));
  return options;
}

/// Tells that each kernel takes as many seconds as its first argument has elements.
class ElementTimes final : public KernelTimes {
 public:
  double seconds(const c10::OperatorHandle&, c10::ArrayRef<c10::IValue> arguments) override {
    return static_cast<double>(arguments.at(0).toTensor().numel());
  }
  double gap_seconds(const c10::OperatorHandle&) const override { return 0.5; }
};

TEST(DryTimesTest, OperatorsTakeWhatTheirKernelsTake) {
  const at::Tensor a = at::ones({2048}), b = at::ones({2048});
  Session session(dry(std::make_shared<ElementTimes>()));
  auto step = session.step();
  (void)a.mul(b);
  (void)a.narrow(0, 0, 1024).add(1);  // made of add.Tensor, which has one kernel
  step.finish();
  const StepTrace& trace = *session.trace();
  ASSERT_EQ(trace.operators.size(), 2);
  EXPECT_EQ(trace.operators[0].seconds, 2048);
  EXPECT_EQ(trace.operators[1].seconds, 1024);
  EXPECT_EQ(trace.operators[1].host_seconds, 0.5);
  EXPECT_EQ(trace.compute_seconds(), 2048 + 1024 + 2 * 0.5);
}

/// Returns the seconds of one convolution of a volume of `edge`³.
double convolve(const std::shared_ptr<MeasuredTimes>& times, int64_t edge) {
  Session session(dry(times));
  const at::Tensor volume = at::empty({1, 2, edge, edge, edge}), weight = at::empty({4, 2, 3, 3, 3});
  auto step = session.step();
  (void)at::conv3d(volume, weight, {}, 1, 1);
  step.finish();
  return session.trace()->operators.at(0).seconds;
}

TEST(MeasuredTimesTest, MeasureEachCallOnce) {
  const auto times = std::make_shared<MeasuredTimes>();
  EXPECT_EQ(convolve(times, 8), 0);
  const int64_t missing = times->missing();
  EXPECT_GT(missing, 0);
  EXPECT_EQ(convolve(times, 8), 0);
  EXPECT_EQ(times->missing(), missing);
  times->measure();
  EXPECT_EQ(times->missing(), 0);
  EXPECT_GT(convolve(times, 8), 0);
  EXPECT_EQ(times->missing(), 0);
  (void)convolve(times, 16);
  EXPECT_GT(times->missing(), 0) << "another size is another call";
}

TEST(MeasuredTimesTest, OperatorsOfBackwardPassesHaveAGapOfTheirOwn) {
  const auto times = std::make_shared<MeasuredTimes>();
  times->set_gaps({.forward = 1, .backward = 100});
  Session session(dry(times));
  at::Tensor weight = at::ones({4});
  weight.set_requires_grad(true);
  auto step = session.step();
  weight.mul(weight).sum().backward();
  step.finish();
  const StepTrace& trace = *session.trace();
  EXPECT_EQ(trace.operators.front().host_seconds, 1);
  EXPECT_EQ(trace.operators.back().host_seconds, 100);
}

TEST(MeasuredTimesTest, LargeVolumesGrowFromOneSample) {
  constexpr int64_t kMaxBytes = 64 << 10;
  const auto times = std::make_shared<MeasuredTimes>(kMaxBytes);
  (void)convolve(times, 64);
  const int64_t missing = times->missing();
  (void)convolve(times, 128);
  EXPECT_EQ(times->missing(), missing) << "both are measured on the same part";
  times->measure();
  EXPECT_NEAR(convolve(times, 128) / convolve(times, 64), 8, 0.01);
}

/// Notes the kernels of `calls`, most of whose arguments are above 64 KiB, measures parts of them, and returns what is
/// then known.
std::map<std::string, double> measured_in_part(const std::function<void()>& calls) {
  const auto times = std::make_shared<MeasuredTimes>(int64_t{64} << 10);
  const auto run = [&] {
    Session session(dry(times));
    calls();
  };
  run();
  EXPECT_GT(times->missing(), 0);
  times->measure();
  run();
  EXPECT_EQ(times->missing(), 0) << "what was measured is known";
  return times->known();
}

/// True where a part whose description has all of `texts` was measured.
bool has_part(const std::map<std::string, double>& known, const std::vector<std::string>& texts) {
  return std::ranges::any_of(known, [&](const auto& entry) {
    return std::ranges::all_of(texts,
                               [&](const std::string& text) { return entry.first.find(text) != std::string::npos; });
  });
}

TEST(MeasuredTimesTest, PartsOfMatricesFitEachOther) {
  const auto known = measured_in_part([] {
    const at::Tensor x = at::empty({16, 512}), weight = at::empty({512, 512}), bias = at::empty({512});
    (void)at::addmm(bias, x, weight);
    (void)at::mm(x.t(), x);
    (void)at::native_layer_norm(at::empty({64, 512}), {512}, bias, bias, 1e-5);
    // The table has an odd number of rows, which are the most.
    (void)at::embedding(at::empty({999, 64}), at::empty({700}, at::TensorOptions(at::kLong)));
  });
  EXPECT_TRUE(has_part(known, {"aten::addmm", "Float 64; ", "Float 16x64", "Float 64x64"})) << "a row of known()";
}

TEST(MeasuredTimesTest, PartsOfALossFitItsTargets) {
  measured_in_part([] {
    const auto labels = at::TensorOptions(at::kLong);
    (void)at::cross_entropy_loss(at::empty({4096, 10}), at::empty({4096}, labels));
    (void)at::cross_entropy_loss(at::empty({2, 3, 64, 128}), at::empty({2, 64, 128}, labels));
  });
}

TEST(MeasuredTimesTest, PartsOfImagesFitTheirStride) {
  const auto known = measured_in_part([] {
    // An image of 14² is halved, and the gradient of 7² cannot be: half of the images are measured.
    (void)at::convolution_backward(at::empty({8, 32, 7, 7}), at::empty({8, 16, 14, 14}), at::empty({32, 16, 3, 3}),
                                   std::nullopt, {2, 2}, {1, 1}, {1, 1}, false, {0, 0}, 1, {true, true, false});
    (void)at::convolution(at::empty({1, 64, 15, 15}), at::empty({16, 64, 3, 3}), {}, {2, 2}, {1, 1}, {1, 1}, false,
                          {0, 0}, 1);
  });
  EXPECT_TRUE(has_part(known, {"convolution_backward", "Float 2x32x7x7", "Float 2x16x14x14", "Float 32x16x3x3"}));
}

TEST(MeasuredTimesTest, APartThatItsOperatorRefusesIsMeasuredLarger) {
  // Without padding 18² gives 16², and 9² gives 7², not 8².
  const auto known = measured_in_part([] {
    (void)at::convolution_backward(at::empty({1, 32, 16, 16}), at::empty({1, 32, 18, 18}), at::empty({32, 32, 3, 3}),
                                   std::nullopt, {1, 1}, {0, 0}, {1, 1}, false, {0, 0}, 1, {true, true, false});
  });
  for (const auto& [call, seconds] : known) EXPECT_GT(seconds, 0) << call;
}

TEST(MeasuredTimesTest, CallsKeepTheOrderOfDimensionsInMemory) {
  // A 1×1 kernel's weights are contiguous in either order, but LibTorch runs another convolution.
  const auto keys_of = [](at::MemoryFormat format) {
    const auto times = std::make_shared<MeasuredTimes>();
    {
      Session session(dry(times));
      const at::Tensor image = at::empty({2, 4, 6, 6});
      (void)at::conv2d(image, at::empty({8, 4, 1, 1}, at::TensorOptions(at::kFloat).memory_format(format)));
    }
    times->measure();
    std::string keys;
    for (const auto& [key, seconds] : times->known()) keys += key + "\n";
    return keys;
  };
  EXPECT_EQ(keys_of(at::MemoryFormat::Contiguous).find("Float 8x4x1x1/"), std::string::npos);
  EXPECT_NE(keys_of(at::MemoryFormat::ChannelsLast).find("Float 8x4x1x1/4,1,4,4"), std::string::npos)
      << keys_of(at::MemoryFormat::ChannelsLast);
}

TEST(MeasuredTimesTest, OperatorsOfManyKindsCanBeMeasured) {
  const auto times = std::make_shared<MeasuredTimes>();
  {
    Session session(dry(times));
    const at::Tensor matrix = at::empty({16, 16}), row = at::empty({1, 16});
    (void)at::linalg_eigh(matrix);
    (void)at::linalg_cholesky(matrix);
    (void)matrix.add(row.expand({16, 16}));
    (void)matrix.index_select(0, at::empty({4}, at::TensorOptions(at::kLong)));
    (void)at::where(matrix.gt(0), matrix, 1.0);
    (void)at::cat({matrix, matrix});
    (void)at::bernoulli(matrix, 0.5);
  }
  EXPECT_GT(times->missing(), 5);
  at::manual_seed(1);
  const at::Tensor drawn = at::rand({4});
  at::manual_seed(1);
  times->measure();
  EXPECT_TRUE(at::rand({4}).equal(drawn)) << "measuring leaves the generator alone";
  EXPECT_EQ(times->missing(), 0);
}

}  // namespace
}  // namespace spillway::swap
