// Tests of layers of one shape that are preconditioned as one.
#include "kfac/refresh/layer_batches.h"

#include <gtest/gtest.h>

#include <limits>
#include <mutex>
#include <utility>

#include "core/error.h"
#include "kfac/make_setup.h"
#include "tests/kfac/rank_training.h"

namespace spillway::kfac {
namespace {

constexpr int64_t kAllElements = int64_t{1} << 20;

/// Returns a model whose layers are of three shapes: 2, 1 and 3 convolutions, and 2 Linear layers.
torch::nn::Sequential model_of_twins() {
  namespace nn = torch::nn;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  torch::manual_seed(3);
  const auto conv = [](int64_t in, int64_t groups, bool bias) {
    return nn::Conv2d(nn::Conv2dOptions(in, 4, 3).padding(1).groups(groups).bias(bias));
  };
  return nn::Sequential(conv(2, 1, true), nn::Tanh(), conv(4, 2, false), nn::Tanh(), conv(4, 1, true), nn::Tanh(),
                        conv(4, 2, false), nn::Tanh(), conv(4, 1, true), nn::Tanh(), conv(4, 1, true), nn::Tanh(),
                        nn::Flatten(), nn::Linear(100, 5), nn::Tanh(), nn::Linear(5, 5), nn::Tanh(), nn::Linear(5, 5));
}

Setup setup_of(const torch::nn::Sequential& model, KfacOptions options) {
  return make_setup([&](const KfacOptions& agreed) { return find_layers(*model, agreed); }, std::move(options), nullptr,
                    {});
}

std::vector<std::vector<size_t>> layers_of(const std::vector<LayerBatch>& batches) {
  std::vector<std::vector<size_t>> all;
  for (const LayerBatch& batch : batches) all.push_back(batch.layers);
  return all;
}

/// Returns the weights after some steps on this rank's share of a batch.
std::vector<at::Tensor> weights_after(const KfacOptions& options, const ddl::Comm& comm, int64_t rank, int64_t world) {
  auto model = model_of_twins();
  Kfac kfac(*model, options, comm);
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1));
  const auto x = share_of({}, rank, world);
  for (int step = 0; step < 5; ++step) take_step(model, kfac, sgd, x, comm);
  std::vector<at::Tensor> weights;
  for (const auto& parameter : model->parameters()) weights.push_back(parameter.detach().clone());
  return weights;
}

void expect_near(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected,
                 const std::string& what) {
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_LT((found[i] - expected[i]).norm().item<double>(), 1e-5 * expected[i].norm().item<double>())
        << what << ", parameter " << i;
}

/// Returns options of every form that an inverse has, and of every damping.
std::vector<std::pair<std::string, KfacOptions>> every_form() {
  std::vector<std::pair<std::string, KfacOptions>> all;
  for (const auto form : {ConvFactors::full, ConvFactors::separable, ConvFactors::block}) {
    KfacOptions options = options_for(Strategy::hybrid, 1, form);
    const std::string name(kfac::name(form));
    all.emplace_back(name, options);
    options.eigen_rank = EigenRank::of(2);
    all.emplace_back(name + ", leading eigenvectors", options);
    options.precompute_outer = true;
    all.emplace_back(name + ", reciprocals", options);
    options = options_for(Strategy::hybrid, 1, form);
    options.method = Method::pi;
    all.emplace_back(name + ", inverses", options);
    options.storage = FactorDtype::bf16;
    all.emplace_back(name + ", inverses of 16 bits", options);
    options = options_for(Strategy::hybrid, 1, form);
    options.damping_scope = DampingScope::layer;
    options.norm_clip = std::numeric_limits<double>::infinity();
    all.emplace_back(name + ", damped by layer, without a clip", options);
    options.damping_scope.reset();
    options.damping = 0.01;
    all.emplace_back(name + ", absolute damping", options);
  }
  return all;
}

TEST(LayerBatchesTest, HaveLayersOfOneShapeUpToTheLimit) {
  auto model = model_of_twins();
  const auto batched = [&](int64_t elements) {
    return layers_of(batches_of(setup_of(model, {.batch_elements = elements})));
  };
  EXPECT_EQ(batched(kAllElements), (std::vector<std::vector<size_t>>{{0}, {1, 3}, {2, 4, 5}, {6}, {7, 8}}));
  const LayerShape twin = setup_of(model, {}).shape(2);
  const int64_t of_two = 2 * (twin.gradient_elements() + eigenbasis_elements(twin));
  EXPECT_EQ(batched(of_two), (std::vector<std::vector<size_t>>{{0}, {1, 3}, {2, 4}, {5}, {6}, {7, 8}}));
  EXPECT_EQ(batched(0).size(), find_layers(*model, {}).layers.size());
}

TEST(LayerBatchesTest, GiveTheStepsOfLayersByThemselves) {
  at::set_num_threads(1);
  for (auto& [name, options] : every_form()) {
    const auto expected = weights_after(options, {}, 0, 1);
    options.batch_elements = kAllElements;
    expect_near(weights_after(options, {}, 0, 1), expected, name);
  }
}

TEST(LayerBatchesTest, GiveEveryRankTheSameBitsUnderEveryStrategy) {
  at::set_num_threads(1);
  const auto alone = weights_after(options_for(Strategy::hybrid), {}, 0, 1);
  for (KfacOptions options : exact_strategies(2)) {
    options.batch_elements = kAllElements;
    std::vector<std::vector<at::Tensor>> weights(2);
    on_threads({0, 0}, [&](const ddl::Comm& comm, int64_t rank) {
      weights[static_cast<size_t>(rank)] = weights_after(options, comm, rank, 2);
    });
    for (size_t i = 0; i < weights[0].size(); ++i)
      EXPECT_TRUE(weights[0][i].equal(weights[1][i])) << describe(options, 2) << ", parameter " << i;
    expect_near(weights[0], alone, describe(options, 2));
  }
}

TEST(LayerBatchesTest, LeaveOutALayerWithoutAGradient) {
  at::set_num_threads(1);
  std::vector<std::vector<at::Tensor>> gradients;
  for (const int64_t elements : {int64_t{0}, kAllElements}) {
    auto model = model_of_twins();
    KfacOptions options;
    options.batch_elements = elements;
    Kfac kfac(*model, options);
    const auto x = global_batch();
    const auto loss = model->forward(x).pow(2).sum(1).mean();
    kfac.watch(loss, x.size(0));
    loss.backward();
    kfac.layers()[4].weight.mutable_grad().reset();
    kfac.step();
    auto& own = gradients.emplace_back();
    for (const Layer& layer : kfac.layers())
      if (layer.weight.grad().defined()) own.push_back(layer.weight.grad().clone());
    EXPECT_EQ(own.size(), kfac.layers().size() - 1);
  }
  expect_near(gradients[1], gradients[0], "of the others");
}

TEST(LayerBatchesTest, RefuseANumberBelowZero) {
  KfacOptions options;
  options.batch_elements = -1;
  EXPECT_THROW(Kfac(*model_of_twins(), options), BadRequest);
}

}  // namespace
}  // namespace spillway::kfac
