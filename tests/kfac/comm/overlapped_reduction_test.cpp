// Tests of factor reductions that overlap with backward.
#include "kfac/comm/overlapped_reduction.h"

#include <array>
#include <chrono>
#include <latch>
#include <thread>

#include "core/device/cpu_device.h"
#include "ddl/comm/collectives.h"
#include "kfac/comm/rank_exchange.h"
#include "tests/kfac/rank_training.h"
#include "tests/kfac/shapes.h"
#include "tests/support/ddl/counting_transport.h"
#include "tests/support/ddl/delayed_transport.h"

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

// Plays `body` on ranks whose messages leave after random delays, so that buckets arrive at other layers each time.
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

std::vector<LayerFactors> factors_of(const std::vector<LayerShape>& shapes) {
  std::vector<LayerFactors> layers;
  for (const auto& shape : shapes) layers.emplace_back(shape, at::TensorOptions(at::kFloat), 1 << 20);
  return layers;
}

std::vector<FactorBucket> with_elements(std::vector<FactorBucket> buckets, const std::vector<LayerShape>& shapes,
                                        FactorDtype dtype) {
  for (auto& bucket : buckets)
    for (size_t l : bucket.layers) bucket.elements += sent_elements(shapes[l], dtype);
  return buckets;
}

void stage(size_t layer, int64_t samples, int step, std::vector<LayerFactors>& layers) {
  const int64_t in = layers[layer].shape().in, out = layers[layer].shape().out;
  const auto x = at::arange(samples * in, at::kFloat).add(step).sin().view({-1, in});
  const auto g = at::arange(samples * out, at::kFloat).cos().view({-1, out});
  layers[layer].stage({layer, x, g, nullptr});
}

struct Reductions {
  std::vector<LayerShape> shapes;
  std::vector<FactorBucket> buckets;  // without their elements
  std::vector<size_t> order;          // the order in which layers are staged
  FactorDtype dtype{};
  Strategy strategy{};
  std::chrono::microseconds pause{0};  // time between two layers, in which messages arrive
  std::chrono::microseconds latest_notice{300};
};

// Reduces two steps of three ranks on two hosts, with 2, 3 and 4 samples. Compares the reduction during backward with
// one after it.
void expect_the_same_late(Reductions r, unsigned seed) {
  const auto plan = assign(r.shapes, 3, {.strategy = r.strategy});
  const auto buckets = with_elements(r.buckets, r.shapes, r.dtype);
  on_late_threads(
      {0, 0, 1}, seed,
      [&](const ddl::Comm& comm, int64_t rank) {
        const RankExchange exchange(comm);
        auto after = factors_of(r.shapes), early = factors_of(r.shapes);
        OverlappedReduction reduction(buckets, early, plan, r.dtype, comm);
        for (int step = 0; step < 2; ++step) {
          std::vector<int64_t> uses(r.shapes.size(), 0);
          for (size_t l : r.order) ++uses[l];
          reduction.begin(uses, 2 + rank);
          for (size_t l : r.order) {
            for (auto* layers : {&after, &early}) stage(l, 2 + rank, step, *layers);
            reduction.staged(l, early);
            std::this_thread::sleep_for(r.pause);
          }
          for (auto& layer : after) layer.finish(2 + rank);
          for (size_t b = buckets.size(); b-- > 0;) {
            reduction.finish(b, early);
            reduce_factors(buckets[b], after, plan, 2 + rank, r.dtype, exchange);
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

// Two layers with a bucket each, on one rank.
struct TwoBuckets {
  static inline const std::vector<LayerShape> kShapes{linear(30, 5), linear(40, 30)};
  std::vector<LayerFactors> layers = factors_of(kShapes);
  OverlappedReduction reduction;

  explicit TwoBuckets(const ddl::Comm& comm, Strategy strategy = Strategy::hybrid,
                      FactorDtype dtype = FactorDtype::fp32)
      : reduction(with_elements({FactorBucket{{0}}, FactorBucket{{1}}}, kShapes, dtype), layers,
                  assign(kShapes, comm->communicator->size(), {.strategy = strategy}), dtype, comm) {}
  void backward(size_t reached = 2) {
    reduction.begin({1, 1}, 3);
    for (size_t layer = 1; reached-- > 0; --layer) {
      stage(layer, 3, 0, layers);
      reduction.staged(layer, layers);
    }
  }
  void finish() {
    for (size_t bucket = 2; bucket-- > 0;) reduction.finish(bucket, layers);
  }
  std::string error_of_finish() {
    try {
      finish();
    } catch (const ddl::CommError& error) {
      return error.what();
    }
    return "none";
  }
};

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
        expect_the_same_late(
            {shapes, {FactorBucket{{0}}, FactorBucket{{1, 2}}, FactorBucket{{3}}}, order, dtype, strategy}, seed);
}

TEST(EarlyReductionTest, LetsNoBucketOvertakeAnother) {
  Reductions many;
  for (size_t l = 0; l < 16; ++l) {
    many.shapes.push_back(linear(3 + static_cast<int64_t>(l), 5));
    many.buckets.push_back(FactorBucket{{l}});
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
      if (rank == 0) factors[overlap] = kfac.state().factor(0, 1).clone();
    });
  EXPECT_TRUE(factors[0].equal(factors[1]));
}

TEST(EarlyReductionTest, CountsItsMessagesUntilTheEndOfTheStep) {
  auto& ledger = CpuDevice::instance().ledger();
  const auto staging = [&] { return ledger.used_by_category()[Category::staging]; };
  const int64_t before = staging();
  for (auto dtype : kDtypes)
    on_threads({0, 0}, [&](const ddl::Comm& comm, int64_t) {
      nn::Linear layer(300, 200);
      Kfac kfac(*layer, {.factor_dtype = dtype, .overlap_factors = true}, comm);
      EXPECT_EQ(kfac.usage().bytes.messages, 0);
      const auto loss = layer(at::ones({4, 300})).pow(2).sum(1).mean();
      kfac.watch(loss, 4);
      loss.backward();
      const int64_t bytes = kfac.usage().bytes.messages, triangles = 4 * (301 * 302 / 2 + 200 * 201 / 2);
      EXPECT_GT(bytes, triangles) << "and scratch";
      EXPECT_LT(bytes, 3 * triangles);
      EXPECT_GE(staging() - before, bytes);
      kfac.step();
      EXPECT_EQ(kfac.usage().bytes.messages, 0);
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

TEST(EarlyReductionTest, ARankThatLeavesInTheMiddleEndsTheStepEverywhere) {
  for (auto [dtype, strategy] : dtypes_and_strategies())
    for (bool at_rest : {false, true})  // with no message of its own under way
      on_late_threads({0, 0, 1}, 7, [&, dtype = dtype, strategy = strategy](const ddl::Comm& comm, int64_t rank) {
        {
          TwoBuckets step(comm, strategy, dtype);
          step.backward(rank == 1 ? 1 : 2);
          if (rank == 1) {
            if (at_rest) step.reduction.finish(1, step.layers);
          } else {  // otherwise it would wait 60 s for its second bucket
            EXPECT_NE(step.error_of_finish().find("rank 1 gave up: was interrupted"), std::string::npos);
          }
        }
        // Duplicates die together, because MPI may still use the memory of messages under way.
        EXPECT_THROW(ddl::barrier(*comm->communicator), ddl::CommError);
      });
}

TEST(EarlyReductionTest, ARankThatFallsSilentIsNamedByFinish) {
  ddl::ThreadWorld threads({0, 0, 1});
  std::vector<std::shared_ptr<ddl::Communicator>> communicators;
  for (int rank = 0; rank < threads.size(); ++rank)
    communicators.push_back(threads.communicator(rank, {.deadline = std::chrono::seconds(1)}));
  std::latch failed(2);
  on_communicators(communicators, [&](const ddl::Comm& comm, int64_t rank) {
    TwoBuckets step(comm);
    if (rank == 1) return failed.wait();
    step.backward();
    EXPECT_NE(step.error_of_finish().find("no answer from rank 1"), std::string::npos);
    failed.count_down();
  });
}

TEST(EarlyReductionTest, RanksThatReduceOtherwiseAreToldByFinish) {
  on_late_threads({0, 0, 1}, 9, [](const ddl::Comm& comm, int64_t rank) {
    TwoBuckets step(comm, rank == 1 ? Strategy::owner_reduce : Strategy::hybrid);
    step.backward();
    EXPECT_NE(step.error_of_finish().find("the ranks disagree"), std::string::npos);
  });
}

TEST(EarlyReductionTest, SendsEveryTriangleOnceToAnotherHostAndOnceBackWhereAllNeedIt) {
  const std::vector<int> hosts{0, 0, 1, 1};
  for (auto strategy : {Strategy::hybrid, Strategy::owner_reduce}) {
    ddl::ThreadWorld threads(hosts);
    std::vector<ddl::testing::ReceivedBytes> received(hosts.size());
    std::vector<std::shared_ptr<ddl::Communicator>> communicators;
    for (int rank = 0; rank < threads.size(); ++rank)
      communicators.push_back(std::make_shared<ddl::Communicator>(
          std::make_unique<ddl::testing::CountingTransport>(threads.transport(rank), received[rank])));
    on_communicators(communicators, [&](const ddl::Comm& comm, int64_t) {
      TwoBuckets step(comm, strategy);
      step.backward();
      step.finish();
    });
    int64_t between_hosts = 0, bytes = 0;
    for (size_t rank = 0; rank < hosts.size(); ++rank) {
      auto by_tag =
          received[rank].by_tag([&](int peer) { return peer != ddl::kAnyRank && hosts[peer] != hosts[rank]; });
      between_hosts += by_tag[ddl::Tag::reduce] + by_tag[ddl::Tag::gather];
    }
    for (const auto& shape : TwoBuckets::kShapes) bytes += 4 * sent_elements(shape, FactorDtype::fp32);
    EXPECT_EQ(between_hosts, strategy == Strategy::hybrid ? 2 * bytes : bytes) << name(strategy);
  }
}

}  // namespace spillway::kfac
