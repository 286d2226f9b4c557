// Tests of the count of operators, and of the operators that K-FAC's steps take.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "benchmarks/commands/operator_counter.h"
#include "kfac/gradient_preconditioner.h"
#include "kfac/kfac.h"
#include "kfac/make_setup.h"
#include "runtime/models/resnet50.h"

namespace spillway::tools {
namespace {

TEST(OperatorCounterTest, CountsWhatComputesAndNothingElse) {
  const auto a = at::ones({4, 6}), b = at::ones({6, 4});
  const OperatorCounter counter;
  const auto views = a.view({6, 4}).transpose(0, 1).narrow(0, 0, 2);
  const auto room = at::empty({3});
  EXPECT_EQ(counter.all(), 0);
  const auto product = at::matmul(a, b);  // which calls mm
  const auto sum = product.view({16}).add(1).sum();
  const std::map<std::string, int64_t> expected{{"aten::add", 1}, {"aten::mm", 1}, {"aten::sum", 1}};
  EXPECT_EQ(counter.by_name(), expected);
  EXPECT_EQ(counter.all(), 3);
}

/// Returns the operators that precondition all layers of a ResNet-50 in batches, in a step between decompositions.
int64_t operators_of_resnet50(int64_t batch_elements) {
  const runtime::ResNet50 model(runtime::ResNet50Options{});
  const at::NoGradGuard no_grad;
  const kfac::Setup setup =
      kfac::make_setup([&](const kfac::KfacOptions& agreed) { return kfac::find_layers(*model, agreed); },
                       {.batch_elements = batch_elements}, nullptr, {});
  kfac::Tally tally;
  const kfac::StagedFactors staged;
  kfac::LayerDampings dampings(setup, staged, tally);
  const auto batches = kfac::batches_of(setup);
  const kfac::LayerInverses inverses(setup, batches);
  kfac::GradientPreconditioner gradients(setup, batches, inverses, dampings, tally);
  for (const kfac::Layer& layer : setup.layers) {
    layer.weight.mutable_grad() = at::zeros_like(layer.weight);
    if (layer.bias.defined()) layer.bias.mutable_grad() = at::zeros_like(layer.bias);
  }
  dampings.set();
  gradients.step();
  const OperatorCounter counter;
  gradients.step();
  return counter.all();
}

TEST(KfacOperatorsTest, PreconditioningAResNet50TakesFewOperatorsInTheBatchesOfAGpu) {
  const int64_t one_by_one = operators_of_resnet50(0);
  const int64_t in_batches = operators_of_resnet50(kfac::default_batch_elements(at::kCUDA));
  EXPECT_LE(in_batches, 390);
  EXPECT_LE(in_batches, 0.45 * static_cast<double>(one_by_one)) << one_by_one;
}

/// Returns the operators of the first five steps of a ResNet-50 whose factors are updated every second step and
/// decomposed every fourth, in the batches of a GPU.
std::vector<int64_t> operators_of_steps() {
  at::manual_seed(1);
  runtime::ResNet50 model(runtime::ResNet50Options{.classes = 10, .filters = 8});
  kfac::Kfac kfac(
      *model, {.factor_interval = 2, .inverse_interval = 4, .batch_elements = kfac::default_batch_elements(at::kCUDA)});
  std::vector<int64_t> operators;
  for (int step = 0; step < 5; ++step) {
    model->zero_grad();
    const auto images = at::randn({2, 3, 32, 32});
    const OperatorCounter counter;
    const auto loss = model->forward(images).square().mean();
    kfac.watch(loss, images.size(0));
    loss.backward();
    kfac.step();
    operators.push_back(counter.all());
  }
  return operators;
}

TEST(KfacOperatorsTest, RefreshingAResNet50TakesFewOperatorsInTheBatchesOfAGpu) {
  const auto operators = operators_of_steps();
  const int64_t plain = operators[1], updating = operators[2];
  EXPECT_LE(updating - plain, 1400) << "an update of the factors";
  EXPECT_LE(operators[4] - updating, 1250) << "a decomposition, of which LAPACK solves each of 108 factors by itself";
  EXPECT_LE(operators[0] - updating, 1350) << "the first decomposition";
}

TEST(KfacOperatorsTest, RunningAveragesOfOneShapeTakeOneOperatorEach) {
  constexpr int64_t kFactors = 50, kSide = 8;
  std::vector<kfac::AverageUpdate> updates;
  const kfac::FactorShape shape{.role = kfac::FactorRole::input, .side = kSide};
  for (int64_t i = 0; i < kFactors; ++i)
    updates.push_back({{at::zeros(shape.triangle_sizes()), {}}, at::eye(kSide).unsqueeze(0)});
  const auto dropped = at::zeros({}, at::kLong);
  const OperatorCounter counter;
  kfac::update_running_averages(updates, 0.9, dropped);
  EXPECT_LE(counter.all(), kFactors + 40);
}

}  // namespace
}  // namespace spillway::tools
