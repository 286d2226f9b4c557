// Tests of the purposes under which a Session counts the tensors of a program that names none.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/category.h"
#include "core/device/cpu_device.h"
#include "core/memory/device_memory.h"
#include "swap/pager/pager.h"
#include "swap/session.h"

namespace spillway {
namespace {

int64_t used(Category category) {
  return CpuDevice::instance().ledger().used_by_category()[category];
}

class PurposesTest : public ::testing::TestWithParam<int64_t> {
 protected:
  /// Returns the charge of a square weight of GetParam() rows.
  static int64_t charge() { return DeviceMemory::charge_of(GetParam() * GetParam() * int64_t{sizeof(float)}); }
  static at::Tensor weight() { return at::randn({GetParam(), GetParam()}).requires_grad_(); }
  static at::Tensor input() { return at::randn({8, GetParam()}); }
};

TEST_P(PurposesTest, ALeafThatRequiresAGradientIsAWeight) {
  Session session(SessionOptions{});
  const at::Tensor w = weight(), x = input();
  const at::Tensor y = x.mm(w);
  EXPECT_EQ(used(Category::weights), charge());
  EXPECT_EQ(y.mm(w).size(0), 8);
  EXPECT_EQ(used(Category::weights), charge()) << "neither inputs nor results are weights";
}

TEST_P(PurposesTest, AWeightFromBeforeTheSessionCountsToo) {
  const at::Tensor w = weight(), x = input();
  Session session(SessionOptions{});
  const at::Tensor y = x.mm(w);
  EXPECT_EQ(used(Category::weights), charge());
}

TEST_P(PurposesTest, AGradientIsOneFromTheMomentThatItIsKept) {
  Session session(SessionOptions{});
  const at::Tensor w = weight(), v = weight(), x = input();
  int64_t within = -1;
  x.mm(v).tanh().mm(w).sum().backward();
  EXPECT_EQ(used(Category::gradients), 2 * charge());
  x.mm(v).tanh().mm(w).sum().backward();
  EXPECT_EQ(used(Category::gradients), 2 * charge()) << "the second one is added to the first";
  v.mutable_grad().reset();
  EXPECT_EQ(used(Category::gradients), charge());
  // Inside a backward: w's gradient is kept before v's is computed.
  w.mutable_grad().reset();
  const at::Tensor hidden = x.mm(v).tanh();
  hidden.register_hook([&](const at::Tensor& gradient) {
    within = used(Category::gradients);
    return gradient;
  });
  hidden.mm(w).sum().backward();
  EXPECT_EQ(within, charge());
}

TEST_P(PurposesTest, AGradientThatMustBeCopiedIsOneToo) {
  Session session(SessionOptions{});
  const at::Tensor w = weight();
  const at::Tensor given = at::ones_like(w);
  w.backward(given);  // the caller holds it, so autograd keeps a copy
  EXPECT_FALSE(w.grad().is_alias_of(given));
  EXPECT_EQ(used(Category::gradients), charge());
}

TEST_P(PurposesTest, APurposeThatTheProgramNamedStays) {
  Session session(SessionOptions{});
  at::Tensor w;
  {
    const CategoryScope scope(Category::factors);
    w = weight();
  }
  const int64_t before = used(Category::factors);
  input().mm(w).sum().backward();
  EXPECT_EQ(used(Category::factors), before);
  EXPECT_EQ(used(Category::weights), 0);
}

TEST_P(PurposesTest, ADetachedActivationIsNoGradient) {
  Session session(SessionOptions{});
  const at::Tensor w = weight(), x = input();
  at::Tensor kept;
  const at::Tensor hidden = x.mm(w);
  hidden.register_hook([&](const at::Tensor& gradient) {
    kept = gradient.detach();
    return gradient;
  });
  const at::Tensor detached = hidden.detach();
  hidden.tanh().sum().backward();
  EXPECT_EQ(used(Category::gradients), charge()) << "the weight's alone";
}

TEST(BucketsTest, GradientAndBucketMayBeComparedWhileTheyAreAbsent) {
  constexpr int64_t kSide = 512, kCount = kSide * kSide;
  Session session(SessionOptions{});
  const std::vector<at::Tensor> weights{at::randn({kSide, kSide}).requires_grad_(),
                                        at::randn({kSide, kSide}).requires_grad_()};
  const at::Tensor bucket = at::empty({2 * kCount}), x = at::randn({8, kSide});
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators;
  int copied = 0;
  // The hooks do what DistributedDataParallel's do, with everything sent away before each look.
  for (size_t i = 0; i < weights.size(); ++i) {
    accumulators.push_back(torch::autograd::impl::grad_accumulator(weights[i]));
    accumulators.back()->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
        [&, i](const torch::autograd::variable_list& outputs, const torch::autograd::variable_list&) {
          at::Tensor view = bucket.narrow(0, static_cast<int64_t>(i) * kCount, kCount).view({kSide, kSide});
          session.pager().evict_all();
          EXPECT_FALSE(weights[i].grad().is_alias_of(view));
          at::mul_out(view, weights[i].grad(), at::scalar_tensor(0.5));
          ++copied;
          return outputs;
        }));
  }
  for (int step = 0; step < 2; ++step) {
    for (const at::Tensor& w : weights) w.mutable_grad().reset();
    session.pager().evict_all();
    x.mm(weights[0]).tanh().mm(weights[1]).sum().backward();
  }
  EXPECT_EQ(copied, 4);
  EXPECT_TRUE(at::equal(bucket.narrow(0, kCount, kCount), weights[1].grad().flatten() * 0.5));
  session.pager().evict_all();
  EXPECT_THROW((void)weights[0].grad().const_data_ptr(), c10::Error) << "its copy is in the bucket";
  EXPECT_THROW((void)bucket.mutable_data_ptr(), c10::Error) << "it may be compared, but not used";
  EXPECT_EQ(used(Category::gradients), 0) << "everything is away";
  EXPECT_EQ((weights[0].grad() + bucket.narrow(0, 0, kCount).view({kSide, kSide})).size(0), kSide);
  EXPECT_EQ(used(Category::gradients),
            DeviceMemory::charge_of(kCount * sizeof(float)) + DeviceMemory::charge_of(2 * kCount * sizeof(float)));
}

// The smaller weight is too small to be a page.
INSTANTIATE_TEST_SUITE_P(Sizes, PurposesTest, ::testing::Values(8, 512));

}  // namespace
}  // namespace spillway
