#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <mutex>
#include <thread>

#include "ddl/thread_world.h"
#include "kfac/preconditioner.h"

namespace spillway::kfac {
namespace {

namespace nn = torch::nn;

constexpr int64_t kGlobalBatch = 12;
constexpr int kSteps = 4;

struct Outcome {
  std::vector<at::Tensor> gradients;  ///< of the last step
  FactorBytes bytes;
  std::vector<LayerShape> shapes;
  std::vector<Assignment> assignments;
};

// The models of all ranks are built under one lock: LibTorch's default generator is shared by the threads.
nn::Sequential small_model() {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  torch::manual_seed(5);
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(2, 4, 3).padding(1)), nn::Tanh(),
                        nn::Conv2d(nn::Conv2dOptions(4, 4, 3).groups(2).bias(false)), nn::Tanh(), nn::Flatten(),
                        nn::Linear(4 * 3 * 3, 3));
}

at::Tensor global_batch() {
  return at::arange(kGlobalBatch * 2 * 25, at::kFloat).mul(0.37).sin().view({-1, 2, 5, 5});
}

Outcome train(const KfacOptions& options, const ddl::Comm& comm, int64_t rank, int64_t world) {
  auto model = small_model();
  Kfac kfac(*model, options, comm);
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1));
  const auto x = global_batch().chunk(world)[static_cast<size_t>(rank)];
  for (int i = 0; i < kSteps; ++i) {
    sgd.zero_grad();
    const auto loss = model->forward(x).pow(2).sum(1).mean();
    kfac.watch(loss, x.size(0));
    loss.backward();
    std::vector<at::Tensor> gradients;
    for (const auto& parameter : model->parameters()) gradients.push_back(parameter.grad());
    if (comm) ddl::allreduce_(gradients, comm, ddl::Reduction::average);
    kfac.step();
    sgd.step();
  }
  Outcome outcome{{}, kfac.state_bytes(), {}, kfac.assignments()};
  for (const auto& parameter : model->parameters()) outcome.gradients.push_back(parameter.grad().clone());
  for (const auto& layer : kfac.layers()) outcome.shapes.push_back(layer.shape);
  return outcome;
}

// Calls body(communicator, rank) on a thread a rank.
void on_ranks(int world, const std::function<void(const ddl::Comm&, int)>& body) {
  ddl::ThreadWorld threads(std::vector<int>(static_cast<size_t>(world), 0));
  const int threads_before = at::get_num_threads();
  std::vector<std::shared_ptr<ddl::Communicator>> communicators;
  for (int rank = 0; rank < world; ++rank) communicators.push_back(threads.communicator(rank));
  std::vector<std::exception_ptr> errors(static_cast<size_t>(world));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world; ++rank)
    ranks.emplace_back([&, rank] {
      const auto i = static_cast<size_t>(rank);
      try {
        at::set_num_threads(1);  // the same split of every sum on every rank
        body(ddl::make_comm(communicators[i]), rank);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    });
  for (auto& thread : ranks) thread.join();
  at::set_num_threads(threads_before);
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
}

// Every rank's outcome.
std::vector<Outcome> train_on(int world, const KfacOptions& options) {
  std::vector<Outcome> outcomes(static_cast<size_t>(world));
  on_ranks(world, [&](const ddl::Comm& comm, int rank) {
    outcomes[static_cast<size_t>(rank)] = train(options, comm, rank, world);
  });
  return outcomes;
}

void expect_bit_equal(const Outcome& a, const Outcome& b, const std::string& what) {
  ASSERT_EQ(a.gradients.size(), b.gradients.size());
  for (size_t i = 0; i < a.gradients.size(); ++i) EXPECT_TRUE(a.gradients[i].equal(b.gradients[i])) << what << ' ' << i;
}

KfacOptions options_for(Strategy strategy, double fraction, ConvFactors form = ConvFactors::full) {
  return {.strategy = strategy,
          .grad_worker_frac = fraction,
          .factor_interval = 2,
          .inverse_interval = 2,
          .conv_factors = form};
}

}  // namespace

TEST(KfacRanksTest, GivesTheGradientOfOneProcessOnAnyNumberOfRanks) {
  for (auto form : {ConvFactors::full, ConvFactors::separable}) {
    const auto single = train(options_for(Strategy::hybrid, 1, form), {}, 0, 1);
    for (int world : {1, 2, 3, 4})
      for (const auto& rank : train_on(world, options_for(Strategy::hybrid, 0.5, form)))
        for (size_t i = 0; i < single.gradients.size(); ++i)
          EXPECT_TRUE(at::allclose(rank.gradients[i], single.gradients[i], 1e-3,
                                   1e-4 * single.gradients[i].abs().max().item<double>()))
              << world << " ranks, parameter " << i;
  }
}

TEST(KfacRanksTest, GivesEveryRankTheSameBits) {
  for (int world : {2, 3, 4}) {
    const auto outcomes = train_on(world, options_for(Strategy::hybrid, 0.5));
    for (const auto& outcome : outcomes) expect_bit_equal(outcomes[0], outcome, std::to_string(world) + " ranks");
  }
}

TEST(KfacRanksTest, GivesTheSameBitsUnderEveryStrategyAndShareOfWorkers) {
  for (int world : {2, 3, 4}) {
    const auto reference = train_on(world, options_for(Strategy::comm_opt, 1))[0];
    expect_bit_equal(reference, train_on(world, options_for(Strategy::mem_opt, 1))[0], "mem_opt");
    for (double fraction : {0.25, 0.5, 0.75, 1.0})
      expect_bit_equal(reference, train_on(world, options_for(Strategy::hybrid, fraction))[0],
                       std::to_string(fraction) + " of " + std::to_string(world));
  }
}

TEST(KfacRanksTest, DoesSoWithEveryMethodAndConvention) {
  const auto with = [](Strategy strategy, int variant) {
    auto options = options_for(strategy, 0.5, variant % 2 ? ConvFactors::separable : ConvFactors::full);
    options.precompute_outer = variant < 2;
    options.method = variant < 2 ? Method::eigen : variant < 4 ? Method::pi : Method::plain;
    options.convention = variant < 2 ? Convention::kaisa : variant < 4 ? Convention::dp_kfac : Convention::fisher;
    return options;
  };
  for (int variant = 0; variant < 6; ++variant) {
    const auto reference = train_on(3, with(Strategy::mem_opt, variant));
    for (auto strategy : {Strategy::comm_opt, Strategy::hybrid})
      for (const auto& outcome : train_on(3, with(strategy, variant)))
        expect_bit_equal(reference[0], outcome, std::string(name(strategy)) + " variant " + std::to_string(variant));
  }
}

TEST(KfacRanksTest, AdaptsTheDampingAlikeFromTheMeanOfTheLosses) {
  std::vector<double> scales(2);
  on_ranks(2, [&](const ddl::Comm& comm, int rank) {
    auto model = small_model();
    Kfac kfac(*model, {}, comm);
    const auto loss = model->forward(global_batch()).pow(2).sum(1).mean();
    kfac.watch(loss, kGlobalBatch);
    loss.backward();
    kfac.step();
    // Alone rank 0 would damp less and rank 1 more; together the loss rises.
    kfac.adapt_damping(1, rank == 0 ? 0 : 3);
    scales[static_cast<size_t>(rank)] = kfac.counters().damping_scale;
  });
  EXPECT_EQ(scales, (std::vector<double>{1 / 0.95, 1 / 0.95}));
}

TEST(KfacRanksTest, HoldsExactlyTheBytesOfTheFormulaOnEveryRank) {
  for (double fraction : {0.25, 0.5, 1.0}) {
    auto options = options_for(Strategy::hybrid, fraction, ConvFactors::separable);
    options.precompute_outer = fraction == 0.5;
    const auto outcomes = train_on(4, options);
    const auto expected = bytes_per_rank(outcomes[0].shapes, outcomes[0].assignments);
    for (size_t rank = 0; rank < outcomes.size(); ++rank) {
      EXPECT_EQ(outcomes[rank].bytes.factors, expected[rank].factors);
      EXPECT_EQ(outcomes[rank].bytes.eigenbases, expected[rank].eigenbases);
    }
  }
}

TEST(KfacRanksTest, RefusesDoublesBetweenRanks) {
  ddl::ThreadWorld world({0, 0});
  const auto comm = ddl::make_comm(world.communicator(0));
  nn::Linear linear(2, 2);
  linear->to(at::kDouble);
  EXPECT_THROW((Kfac{*linear, {}, comm}), c10::Error);
}

}  // namespace spillway::kfac
