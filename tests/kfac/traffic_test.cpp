// Tests of the messages between ranks, and of the gradients that DP-KFAC makes without some of them.
#include <limits>

#include "kfac/factors/packed_triangles.h"
#include "kfac/plan/assignment.h"
#include "kfac/plan/factor_traffic.h"
#include "tests/kfac/rank_training.h"
#include "tests/support/ddl/counting_transport.h"

namespace spillway::kfac {
namespace {

const double kUnclipped = std::numeric_limits<double>::infinity();

at::Tensor symmetric(int64_t groups, int64_t n) {
  const auto x = at::arange(groups * n * n, at::kFloat).mul(0.61).cos().view({groups, n, n});
  return x + x.transpose(1, 2);
}

// One step of every rank: the averaged gradient, and the gradient that K-FAC makes of it.
struct Step {
  std::vector<at::Tensor> averaged, natural;
  std::vector<int64_t> owners;
};

std::vector<Step> one_step(int world, const KfacOptions& options) {
  std::vector<Step> steps(static_cast<size_t>(world));
  on_threads(std::vector<int>(static_cast<size_t>(world), 0), [&](const ddl::Comm& comm, int64_t rank) {
    auto& step = steps[static_cast<size_t>(rank)];
    auto model = small_model();
    Kfac kfac(*model, options, comm);
    const auto x = share_of({}, rank, world);
    const auto loss = model->forward(x).pow(2).sum(1).mean();
    kfac.watch(loss, x.size(0));
    loss.backward();
    average_gradients(*model, comm, 1);
    for (const auto& p : model->parameters()) step.averaged.push_back(p.grad().clone());
    kfac.step();
    for (const auto& p : model->parameters()) step.natural.push_back(p.grad().clone());
    for (const auto& layer : kfac.state().assignments()) step.owners.push_back(layer.owners.front());
  });
  return steps;
}

// Returns the same averaged gradient, preconditioned in one process. The statistics are those of `rank`'s mini-batch
// alone.
std::vector<at::Tensor> by_own_batch(const std::vector<at::Tensor>& averaged, int64_t rank, int64_t world,
                                     KfacOptions options) {
  auto model = small_model();
  options.strategy = Strategy::hybrid;
  Kfac kfac(*model, options);
  const auto x = share_of({}, rank, world);
  const auto loss = model->forward(x).pow(2).sum(1).mean();
  kfac.watch(loss, x.size(0));
  loss.backward();
  const auto parameters = model->parameters();
  for (size_t i = 0; i < parameters.size(); ++i) parameters[i].grad().copy_(averaged[i]);
  kfac.step();
  std::vector<at::Tensor> natural;
  for (const auto& p : parameters) natural.push_back(p.grad().clone());
  return natural;
}

}  // namespace

TEST(TrianglesTest, ComeBackAsExactlySymmetricMatrices) {
  std::vector<at::Tensor> matrices, back;
  int64_t elements = 0;
  for (int64_t n : {1, 2, 3, 4, 7, 8})
    for (int64_t groups : {1, 3}) {
      matrices.push_back(symmetric(groups, n));
      back.push_back(at::full_like(matrices.back(), -9));
      elements += groups * n * (n + 1) / 2;
    }
  ASSERT_EQ(packed_elements(matrices), elements);
  const auto packed = at::full({elements}, -7.0f);
  pack_triangles(matrices, packed);
  unpack_triangles(packed, back);
  for (size_t i = 0; i < matrices.size(); ++i) EXPECT_TRUE(back[i].equal(matrices[i])) << i;
}

TEST(TrianglesTest, MakeAnAlmostSymmetricMatrixSymmetricAndRoundOnce) {
  auto matrix = symmetric(1, 5);
  matrix[0][3][1] += 1e-4;  // rounding of a product
  const auto packed = at::empty({15}, at::kBFloat16);
  const auto back = at::empty_like(matrix);
  pack_triangles({matrix}, packed);
  unpack_triangles(packed, {back});
  EXPECT_TRUE(back.equal(back.transpose(1, 2)));
  EXPECT_TRUE(back.equal(symmetric(1, 5).to(at::kBFloat16).to(at::kFloat)));
}

TEST(FactorTrafficTest, IsWhatARankReceivesToTheByte) {
  auto all = exact_strategies(3);
  all.push_back(options_for(Strategy::dp));
  all.push_back({.strategy = Strategy::owner_reduce,
                 .factor_dtype = FactorDtype::fp16,
                 .factor_interval = 2,
                 .inverse_interval = 2});
  all.push_back(
      {.strategy = Strategy::comm_opt, .factor_dtype = FactorDtype::bf16, .factor_interval = 2, .inverse_interval = 2});
  for (auto strategy : {Strategy::hybrid, Strategy::owner_reduce})
    for (auto dtype : {FactorDtype::fp32, FactorDtype::bf16})
      all.push_back({.strategy = strategy,
                     .factor_dtype = dtype,
                     .overlap_factors = true,
                     .factor_interval = 2,
                     .inverse_interval = 2});
  for (auto strategy : {Strategy::comm_opt, Strategy::owner_reduce})
    for (auto method : {Method::eigen, Method::pi}) {
      all.push_back(options_for(strategy, 1, ConvFactors::block));
      all.back().method = method;
      all.back().storage = FactorDtype::fp16;
    }
  for (size_t i = 0, before = all.size(); i < before; ++i) {
    all.push_back(all[i]);
    all.back().damping_scope = DampingScope::layer;
  }
  for (const auto& options : all) {
    constexpr int kWorld = 3;
    std::vector<ddl::testing::ReceivedBytes> received(kWorld);
    std::vector<std::vector<std::map<ddl::Tag, int64_t>>> after(kWorld);
    std::vector<Outcome> outcomes(kWorld);
    ddl::ThreadWorld threads({0, 0, 0});
    std::vector<std::shared_ptr<ddl::Communicator>> communicators;
    for (int rank = 0; rank < kWorld; ++rank)
      communicators.push_back(std::make_shared<ddl::Communicator>(
          std::make_unique<ddl::testing::CountingTransport>(threads.transport(rank), received[rank])));
    on_communicators(communicators, [&](const ddl::Comm& comm, int64_t rank) {
      const auto r = static_cast<size_t>(rank);
      // Step 0 takes in factors and decomposes them, and step 1 only takes in factors. Each rank keeps its own
      // gradients.
      outcomes[r] = train(options, comm, rank, kWorld, {.steps = 2, .average_gradients = false, .after_step = [&](int) {
                                                          after[r].push_back(received[r].by_tag());
                                                        }});
    });
    const auto expected = traffic_per_rank(outcomes[0].shapes, outcomes[0].assignments, options.factor_dtype);
    const bool of_network = options.damping_scope_in_use() == DampingScope::network;
    const int64_t means = of_network ? 24 * (kWorld - 1) * std::ssize(outcomes[0].shapes) / kWorld : 0;
    for (size_t r = 0; r < kWorld; ++r) {
      auto first = after[r][0], second = after[r][1];
      EXPECT_EQ(first[ddl::Tag::reduce] + first[ddl::Tag::gather], expected[r].factors + means)
          << describe(options, kWorld) << ", rank " << r;
      EXPECT_EQ(first[ddl::Tag::broadcast], expected[r].eigenbases + expected[r].gradients)
          << describe(options, kWorld) << ", rank " << r;
      EXPECT_EQ(second[ddl::Tag::broadcast] - first[ddl::Tag::broadcast], expected[r].gradients);
    }
  }
}

TEST(FactorTrafficTest, In16BitsGivesAlmostTheSameGradientAndTheSameBitsUnderEveryStrategy) {
  for (auto dtype : {FactorDtype::bf16, FactorDtype::fp16}) {
    auto options = options_for(Strategy::hybrid);
    options.kl_clip = kUnclipped;
    const auto exact = one_step(3, options)[0];
    options.factor_dtype = dtype;
    const auto reference = one_step(3, options)[0];
    for (size_t i = 0; i < exact.natural.size(); ++i) {
      const double difference = (reference.natural[i] - exact.natural[i]).norm().item<double>();
      EXPECT_LT(difference, (dtype == FactorDtype::bf16 ? 0.05 : 0.01) * exact.natural[i].norm().item<double>())
          << name(dtype) << ' ' << i;
    }
    EXPECT_FALSE(reference.natural[0].equal(exact.natural[0])) << "nothing was rounded";
    for (auto strategy : {Strategy::comm_opt, Strategy::mem_opt, Strategy::owner_reduce}) {
      options.strategy = strategy;
      for (const auto& rank : one_step(3, options))
        for (size_t i = 0; i < exact.natural.size(); ++i)
          EXPECT_TRUE(rank.natural[i].equal(reference.natural[i])) << name(strategy) << ' ' << i;
    }
  }
}

TEST(FactorTrafficTest, In16BitsNeitherOverflowsNorLosesFactorsOfAnySize) {
  // A is of order 1e8 and G of order 1e-12, far outside the range of fp16 (6e-8 to 65504).
  for (auto dtype : {FactorDtype::fp32, FactorDtype::bf16, FactorDtype::fp16})
    on_threads({0, 0}, [&](const ddl::Comm& comm, int64_t rank) {
      auto model = small_model();
      KfacOptions options{.factor_dtype = dtype, .kl_clip = kUnclipped};
      Kfac kfac(*model, options, comm);
      const auto x = share_of({}, rank, 2) * 1e4;
      const auto loss = model->forward(x).pow(2).sum(1).mean() * 1e-6;
      kfac.watch(loss, x.size(0));
      loss.backward();
      average_gradients(*model, comm, 1);
      kfac.step();
      EXPECT_EQ(kfac.counters().dropped_factors, 0) << name(dtype);
      EXPECT_GT(kfac.state().factor(0, 0).diagonal(0, -2, -1).max().item<double>(), 1e6) << name(dtype);
      for (size_t l = 0; l < 3; ++l)
        for (size_t f = 0; f < 2; ++f)
          EXPECT_GT(kfac.state().factor(l, f).diagonal(0, -2, -1).sum().item<double>(), 0)
              << name(dtype) << " layer " << l;
      for (const auto& parameter : model->parameters()) EXPECT_TRUE(parameter.grad().isfinite().all().item<bool>());
    });
}

TEST(DpKfacTest, PreconditionsEachLayerByItsOwnersMiniBatch) {
  for (int world : {2, 3, 4}) {
    auto options = options_for(Strategy::dp);
    options.kl_clip = kUnclipped;
    options.damping_scope = DampingScope::layer;  // the network's is of all owners' mini-batches
    const auto steps = one_step(world, options);
    const std::vector<size_t> layer_of{0, 0, 1, 2, 2};  // the layer of each of the five parameters
    for (size_t i = 0; i < layer_of.size(); ++i) {
      const int64_t owner = steps[0].owners[layer_of[i]];
      const auto expected = by_own_batch(steps[0].averaged, owner, world, options)[i];
      for (const auto& rank : steps)
        EXPECT_TRUE(at::allclose(rank.natural[i], expected, 1e-3, 1e-4 * expected.abs().max().item<double>()))
            << world << " ranks, parameter " << i;
      const auto other = by_own_batch(steps[0].averaged, (owner + 1) % world, world, options)[i];
      EXPECT_FALSE(at::allclose(other, expected, 1e-3, 1e-4 * expected.abs().max().item<double>()))
          << "mini-batches that cannot be told apart test nothing";
    }
  }
}

TEST(DpKfacTest, Converges) {
  const auto losses = [](Strategy strategy) {
    auto options = options_for(strategy, 0.5);
    options.decay = 0.95;
    options.burn_in = 10;
    options.kl_clip = harmonic(1e-5, 10);
    const auto outcomes = train_on(2, options, {.steps = 40});
    return std::pair{outcomes[0].losses.front() + outcomes[1].losses.front(),
                     outcomes[0].losses.back() + outcomes[1].losses.back()};
  };
  const auto [start, end] = losses(Strategy::dp);
  std::printf("    loss %.3g; after 40 steps %.3g by dp, %.3g by hybrid\n", start, end,
              losses(Strategy::hybrid).second);
  EXPECT_LT(end, start / 10);
}

}  // namespace spillway::kfac
