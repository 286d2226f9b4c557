// Every model of the tests, with and without K-FAC: everything evicted after every operator, and every schema checked.
#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <optional>

#include "core/cpu_allocator.h"
#include "kfac/preconditioner.h"
#include "runtime/dataset.h"
#include "runtime/fingerprint.h"
#include "runtime/task.h"
#include "swap/optim.h"
#include "swap/session.h"
#include "tests/support/checking_observers.h"

namespace spillway {
namespace {

struct Model {
  const char* name;
  const char* data;
  bool kfac;
  kfac::ConvFactors factors;
};

std::vector<double> train(const Model& model, std::shared_ptr<OperatorObserver> observer, std::string& weights) {
  CpuDevice::instance();
  at::globalContext().setDeterministicAlgorithms(true, false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  auto data = open_dataset(model.name, model.data, {.cases = 4});
  const Batch batch = gather(*data, {0, 1});
  at::manual_seed(9);
  std::optional<Session> session;
  if (observer) session.emplace(SessionOptions{.min_page_bytes = 1, .observer = observer});
  TaskOptions options;
  options.unet3d.filters = 2;
  options.mlp.input = 16;
  auto task = make_task(model.name, options);
  Sgd sgd(task->module().parameters(), {.lr = 0.05});
  std::optional<kfac::Kfac> kfac;
  if (model.kfac) kfac.emplace(task->module(), kfac::KfacOptions{.inverse_interval = 2, .conv_factors = model.factors});
  std::vector<double> losses;
  for (int i = 0; i < 3; ++i) {
    at::Tensor loss = task->loss(batch);
    if (kfac) kfac->watch(loss, batch.input.size(0));
    loss.backward();
    if (kfac) kfac->step(0.05);
    sgd.step();
    sgd.zero_grad();
    losses.push_back(loss.item<double>());
  }
  losses.push_back(task->metric(batch));
  weights = weights_sha256(task->module());
  return losses;
}

struct EvictModelsTest : ::testing::TestWithParam<Model> {};

TEST_P(EvictModelsTest, TrainsToTheSameBitsAndNoSchemaLies) {
  std::string plain, paged, checked;
  const auto losses = train(GetParam(), nullptr, plain);
  EXPECT_EQ(losses, train(GetParam(), std::make_shared<testing::EvictEverything>(), paged));
  EXPECT_EQ(plain, paged);
  auto checker = std::make_shared<testing::SchemaChecker>();
  EXPECT_EQ(losses, train(GetParam(), checker, checked));
  EXPECT_TRUE(checker->liars().empty()) << *checker->liars().begin();
  EXPECT_GT(checker->compared(), 100u);
}

INSTANTIATE_TEST_SUITE_P(Models, EvictModelsTest,
                         ::testing::Values(Model{"mlp", "synthetic:16", false, kfac::ConvFactors::full},
                                           Model{"mlp", "synthetic:16", true, kfac::ConvFactors::full},
                                           Model{"unet3d", "synthetic:32", false, kfac::ConvFactors::full},
                                           Model{"unet3d", "synthetic:32", true, kfac::ConvFactors::full},
                                           Model{"unet3d", "synthetic:32", true, kfac::ConvFactors::separable}),
                         [](const auto& info) {
                           return std::string(info.param.name) + (info.param.kfac ? "_kfac_" : "_plain") +
                                  (info.param.kfac ? std::string(kfac::name(info.param.factors)) : "");
                         });

}  // namespace
}  // namespace spillway
