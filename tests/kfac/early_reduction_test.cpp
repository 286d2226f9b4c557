// Factors that leave while backward goes on.
#include "kfac/early_reduction.h"

#include <array>
#include <chrono>
#include <thread>

#include "core/cpu_allocator.h"
#include "tests/kfac/rank_training.h"
#include "tests/kfac/shapes.h"
#include "tests/support/ddl_delayed_transport.h"

namespace spillway::kfac {
namespace {

namespace nn = torch::nn;

constexpr std::array kDtypes{FactorDtype::fp32, FactorDtype::bf16, FactorDtype::fp16};

KfacOptions overlapped(KfacOptions options) {
  options.overlap_factors = true;
  return options;
}

KfacOptions options_in(FactorDtype dtype, Strategy strategy) {
  auto options = options_for(strategy);
  options.factor_dtype = dtype;
  return options;
}

// Messages leave after random delays, so that buckets arrive at other layers each time.
void on_late_threads(const std::vector<int>& hosts, unsigned seed,
                     const std::function<void(const ddl::Comm&, int64_t)>& body,
                     std::chrono::microseconds latest = std::chrono::microseconds(300)) {
  ddl::ThreadWorld threads(hosts);
  std::vector<std::shared_ptr<ddl::Communicator>> communicators;
  for (int rank = 0; rank < threads.size(); ++rank)
    communicators.push_back(std::make_shared<ddl::Communicator>(
        std::make_unique<ddl::testing::DelayedTransport>(threads.transport(rank), 31 * seed + rank, latest)));
  on_communicators(communicators, body);
}

std::vector<std::pair<FactorDtype, Strategy>> dtypes_and_strategies() {
  std::vector<std::pair<FactorDtype, Strategy>> all;
  for (auto dtype : kDtypes)
    for (auto strategy : {Strategy::hybrid, Strategy::owner_reduce}) all.emplace_back(dtype, strategy);
  return all;
}

std::vector<Outcome> train_late(const std::vector<int>& hosts, const KfacOptions& options, const Course& course,
                                unsigned seed) {
  std::vector<Outcome> outcomes(hosts.size());
  on_late_threads(hosts, seed, [&](const ddl::Comm& comm, int64_t rank) {
    outcomes[static_cast<size_t>(rank)] = train(options, comm, rank, static_cast<int64_t>(hosts.size()), course);
  });
  return outcomes;
}

struct Reductions {
  std::vector<LayerShape> shapes;
  std::vector<FactorBucket> buckets;  // without their elements
  std::vector<size_t> order;          // in which layers are staged
  FactorDtype dtype{};
  Strategy strategy{};
  std::chrono::microseconds pause{0};  // between two layers, in which messages come
  std::chrono::microseconds latest_notice{300};
};

// Two steps of three ranks with 2, 3 and 4 samples, reduced early and afterwards.
void expect_the_same_late(Reductions r, unsigned seed) {
  const auto plan = assign(r.shapes, 3, {.strategy = r.strategy});
  for (auto& bucket : r.buckets)
    for (size_t l = bucket.begin; l < bucket.end; ++l) bucket.elements += sent_elements(r.shapes[l], r.dtype);
  on_late_threads(
      {0, 0, 0}, seed,
      [&](const ddl::Comm& comm, int64_t rank) {
        const Exchange exchange(comm);
        std::vector<LayerFactors> after, early;
        for (const auto& shape : r.shapes)
          for (auto* layers : {&after, &early}) layers->emplace_back(shape, at::TensorOptions(at::kFloat), 1 << 20);
        EarlyReduction reduction(r.buckets, plan, r.dtype, comm);
        for (int step = 0; step < 2; ++step) {
          std::vector<int64_t> uses(r.shapes.size(), 0);
          for (size_t l : r.order) ++uses[l];
          reduction.begin(uses, 2 + rank);
          for (size_t l : r.order) {
            const int64_t in = r.shapes[l].in, out = r.shapes[l].out;
            const auto x = at::arange((2 + rank) * in, at::kFloat).add(step).sin().view({-1, in});
            const auto g = at::arange((2 + rank) * out, at::kFloat).cos().view({-1, out});
            for (auto* layers : {&after, &early}) (*layers)[l].stage({l, x, g, nullptr});
            reduction.staged(l, early);
            std::this_thread::sleep_for(r.pause);
          }
          for (auto& layer : after) layer.finish(2 + rank);
          for (size_t b = r.buckets.size(); b-- > 0;) {
            reduction.finish(b, early);
            reduce_factors(r.buckets[b], after, plan, 2 + rank, r.dtype, exchange);
          }
          for (size_t l = 0; l < r.shapes.size(); ++l) {
            for (size_t f = 0; plan[l].holds_factors(rank) && f < 2; ++f)
              EXPECT_TRUE(early[l].staged()[f].equal(after[l].staged()[f])) << l << ' ' << f;
            after[l].discard();
            early[l].discard();
          }
        }
      },
      r.latest_notice);
}

}  // namespace

TEST(EarlyReductionTest, GivesTheBitsOfTheReductionAfterBackward) {
  size_t count = 0;
  for (const std::vector<int>& hosts : {std::vector{0, 0}, {0, 0, 0}, {0, 1, 0, 1}})
    for (auto options : exact_strategies(static_cast<int64_t>(hosts.size()))) {
      options.factor_dtype = kDtypes[count++ % kDtypes.size()];
      const auto after = train_on(hosts, options);
      for (unsigned seed : {1, 2}) {
        const auto early = train_late(hosts, overlapped(options), {}, seed);
        for (size_t rank = 0; rank < hosts.size(); ++rank)
          expect_bit_equal(after[rank], early[rank], describe(options, static_cast<int64_t>(hosts.size())));
      }
    }
}

TEST(EarlyReductionTest, KeepsManyBucketsInOrderWhateverArrivesWhen) {
  const std::vector<LayerShape> shapes{linear(3, 5, true), linear(400, 300), linear(2, 7), linear(500, 200)};
  for (auto [dtype, strategy] : dtypes_and_strategies())
    for (const auto& order : {std::vector<size_t>{3, 2, 1, 0}, {0, 1, 2, 3}, {2, 3, 2, 0, 1}})
      for (unsigned seed = 0; seed < 3; ++seed)
        expect_the_same_late({shapes, {{0, 1}, {1, 3}, {3, 4}}, order, dtype, strategy}, seed);
}

TEST(EarlyReductionTest, LetsNoBucketOvertakeAnother) {
  Reductions many;
  for (size_t l = 0; l < 16; ++l) {
    many.shapes.push_back(linear(3 + static_cast<int64_t>(l), 5));
    many.buckets.push_back({l, l + 1});
    many.order.push_back(15 - l);
  }
  many.pause = std::chrono::microseconds(60);
  many.latest_notice = std::chrono::milliseconds(2);
  for (auto [dtype, strategy] : dtypes_and_strategies()) {
    many.dtype = dtype;
    many.strategy = strategy;
    for (unsigned seed = 0; seed < 3; ++seed) expect_the_same_late(many, seed);
  }
}

TEST(EarlyReductionTest, ServesRanksWithoutSamplesAndUnevenOnes) {
  for (auto [dtype, strategy] : dtypes_and_strategies()) {
    const Course course{.samples = {7, 0, 5}};
    const auto options = options_in(dtype, strategy);
    const auto after = train_on(3, options, course);
    const auto early = train_late({0, 0, 0}, overlapped(options), course, 3);
    for (size_t rank = 0; rank < 3; ++rank) expect_bit_equal(after[rank], early[rank], "uneven");
  }
}

TEST(EarlyReductionTest, WaitsForEveryUseOfAReusedLayerAndSurvivesLayersThatAreNotUsed) {
  std::vector<at::Tensor> factors(2);
  for (bool overlap : {false, true})
    on_threads({0, 0}, [&](const ddl::Comm& comm, int64_t rank) {
      nn::Module model;
      nn::Linear layer = model.register_module("layer", nn::Linear(3, 3));
      model.register_module("idle", nn::Linear(3, 2));
      at::NoGradGuard no_grad;
      for (auto& p : model.parameters()) p.copy_(at::arange(p.numel(), at::kFloat).mul(0.3).cos().view_as(p));
      at::AutoGradMode grad(true);
      Kfac kfac(model, {.overlap_factors = overlap}, comm);
      const auto x = at::arange(12, at::kFloat).mul(0.7 + static_cast<double>(rank)).sin().view({4, 3});
      const auto loss = layer(layer(layer(x).tanh()).tanh()).pow(2).sum(1).mean();
      kfac.watch(loss, 4);
      loss.backward();
      average_gradients(model, comm, 1);
      kfac.step();
      if (rank == 0) factors[overlap] = kfac.factor(0, 1).clone();
    });
  EXPECT_TRUE(factors[0].equal(factors[1]));
}

TEST(EarlyReductionTest, CountsItsMessagesUntilTheEndOfTheStep) {
  auto& ledger = CpuDevice::instance().ledger();
  const auto staging = [&] { return ledger.used_by_category()[static_cast<size_t>(Category::staging)]; };
  const int64_t before = staging();
  for (auto dtype : kDtypes)
    on_threads({0, 0}, [&](const ddl::Comm& comm, int64_t) {
      nn::Linear layer(300, 200);
      Kfac kfac(*layer, {.factor_dtype = dtype, .overlap_factors = true}, comm);
      EXPECT_EQ(kfac.memory_usage().messages, 0);
      const auto loss = layer(at::ones({4, 300})).pow(2).sum(1).mean();
      kfac.watch(loss, 4);
      loss.backward();
      const int64_t bytes = kfac.memory_usage().messages, triangles = 4 * (301 * 302 / 2 + 200 * 201 / 2);
      EXPECT_GE(bytes, triangles);
      EXPECT_LE(bytes, dtype == FactorDtype::fp32 ? 2 * triangles + 64 : triangles);
      EXPECT_GE(staging() - before, bytes);
      kfac.step();
      EXPECT_EQ(kfac.memory_usage().messages, 0);
    });
  EXPECT_EQ(staging(), before);
}

TEST(EarlyReductionTest, ForgetsADiscardedStepOnEveryRank) {
  for (auto [dtype, strategy] : dtypes_and_strategies()) {
    const auto options = options_in(dtype, strategy);
    std::vector<std::vector<at::Tensor>> natural(2);
    for (bool skipped : {false, true})
      on_threads({0, 0}, [&](const ddl::Comm& comm, int64_t rank) {
        auto model = small_model();
        Kfac kfac(*model, overlapped(options), comm);
        const auto backward = [&](double scale) {
          model->zero_grad();
          const auto x = share_of({}, rank, 2) * scale;
          const auto loss = model->forward(x).pow(2).sum(1).mean();
          kfac.watch(loss, x.size(0));
          loss.backward();
        };
        if (skipped) {
          backward(3);
          kfac.discard();
        }
        backward(1);
        average_gradients(*model, comm, 1);
        kfac.step();
        if (rank == 0)
          for (const auto& p : model->parameters()) natural[skipped].push_back(p.grad().clone());
      });
    for (size_t i = 0; i < natural[0].size(); ++i) EXPECT_TRUE(natural[0][i].equal(natural[1][i])) << i;
  }
}

TEST(EarlyReductionTest, RefusesASecondWatchInAStep) {
  on_threads({0, 0}, [](const ddl::Comm& comm, int64_t rank) {
    auto model = small_model();
    Kfac kfac(*model, {.overlap_factors = true}, comm);
    const auto x = share_of({}, rank, 2);
    const auto loss = model->forward(x).pow(2).sum(1).mean();
    kfac.watch(loss, x.size(0));
    EXPECT_THROW(kfac.watch(loss, x.size(0)), c10::Error);
  });
}

TEST(EarlyReductionTest, LeavesInPeaceWhenAStepNeverComes) {
  for (auto dtype : kDtypes)
    on_late_threads({0, 0}, 5, [&](const ddl::Comm& comm, int64_t rank) {
      auto model = small_model();
      Kfac kfac(*model, {.factor_dtype = dtype, .overlap_factors = true}, comm);
      const auto x = share_of({}, rank, 2);
      const auto loss = model->forward(x).pow(2).sum(1).mean();
      kfac.watch(loss, x.size(0));
      loss.backward();
    });
}

}  // namespace spillway::kfac
