#include <atomic>
#include <limits>

#include "core/error.h"
#include "tests/kfac/rank_training.h"

namespace spillway::kfac {
namespace {
namespace nn = torch::nn;
}

TEST(KfacRanksTest, GivesTheGradientOfOneProcessUnderEveryExactStrategyOnAnyNumberOfRanks) {
  for (auto form : {ConvFactors::full, ConvFactors::separable, ConvFactors::block}) {
    const auto single = train(options_for(Strategy::hybrid, 1, form), {}, 0, 1);
    for (int world : {1, 2, 3, 4})
      for (const auto& options : exact_strategies(world, form))
        for (const auto& rank : train_on(world, options)) expect_close(rank, single, 1e-3, describe(options, world));
  }
}

TEST(KfacRanksTest, GivesEveryRankTheSameBits) {
  for (int world : {2, 3, 4})
    for (auto strategy : {Strategy::hybrid, Strategy::owner_reduce, Strategy::dp}) {
      const auto outcomes = train_on(world, options_for(strategy, 1.0 / world));
      for (const auto& outcome : outcomes) expect_bit_equal(outcomes[0], outcome, describe(outcome.options, world));
    }
}

/// Checks that all ranks scale by rank 0's sums where sums differ by rank, as they do on different processors.
TEST(KfacRanksTest, ScalesByTheSameNuOnEveryRank) {
  std::vector<std::vector<at::Tensor>> gradients(2);
  on_threads({0, 0}, [&](const ddl::Comm& comm, int64_t rank) {
    auto model = small_model();
    Kfac kfac(*model, {.grad_worker_frac = 1, .kl_clip = 1e-9}, comm);
    const at::Tensor loss = model->forward(global_batch()).pow(2).sum(1).mean();
    kfac.watch(loss, kGlobalBatch);
    loss.backward();
    for (const auto& parameter : model->parameters()) parameter.grad().mul_(rank == 0 ? 1 : 4);
    kfac.step();
    for (const auto& parameter : model->parameters())
      gradients[static_cast<size_t>(rank)].push_back(parameter.grad().clone());
  });
  for (size_t i = 0; i < gradients[0].size(); ++i)
    EXPECT_TRUE(at::equal(gradients[1][i], gradients[0][i] * 4)) << "parameter " << i;
}

TEST(KfacRanksTest, GivesTheSameBitsUnderEveryExactStrategyPlacementAndShareOfWorkers) {
  for (const std::vector<int>& hosts : {std::vector{0, 0}, {0, 0, 0}, {0, 0, 0, 0}, {0, 0, 1}, {0, 1, 0, 1}}) {
    const auto world = static_cast<int64_t>(hosts.size());
    const auto reference = train_on(hosts, options_for(Strategy::comm_opt))[0];
    for (auto options : exact_strategies(world)) {
      expect_bit_equal(reference, train_on(hosts, options)[0], describe(options, world));
      options.placement = Placement::round_robin;
      expect_bit_equal(reference, train_on(hosts, options)[0], describe(options, world));
    }
  }
}

TEST(KfacRanksTest, DoesSoWithEveryMethodAndConvention) {
  const auto with = [](Strategy strategy, int variant) {
    auto options = options_for(strategy, 1.0 / 3, variant % 2 ? ConvFactors::separable : ConvFactors::full);
    options.precompute_outer = variant < 2;
    options.method = variant < 2 ? Method::eigen : variant < 4 ? Method::pi : Method::plain;
    options.convention = variant < 2 ? Convention::kaisa : variant < 4 ? Convention::dp_kfac : Convention::fisher;
    return options;
  };
  for (int variant = 0; variant < 6; ++variant) {
    const auto reference = train_on(3, with(Strategy::mem_opt, variant));
    for (auto strategy : {Strategy::comm_opt, Strategy::hybrid, Strategy::owner_reduce})
      for (const auto& outcome : train_on(3, with(strategy, variant)))
        expect_bit_equal(reference[0], outcome, std::string(name(strategy)) + " variant " + std::to_string(variant));
  }
}

TEST(KfacRanksTest, DoesSoWithSampledPositions) {
  const auto with = [](Strategy strategy, ConvFactors form) {
    auto options = options_for(strategy, 1.0 / 3, form);
    options.factor_samples = FactorSamples::at_least(20);
    return options;
  };
  for (auto form : {ConvFactors::full, ConvFactors::separable, ConvFactors::block}) {
    const auto reference = train_on(3, with(Strategy::mem_opt, form));
    const auto exact = train_on(3, options_for(Strategy::mem_opt, 1.0 / 3, form));
    EXPECT_FALSE(reference[0].gradients[0].equal(exact[0].gradients[0]));
    for (auto strategy : {Strategy::comm_opt, Strategy::hybrid, Strategy::owner_reduce})
      for (const auto& outcome : train_on(3, with(strategy, form)))
        expect_bit_equal(reference[0], outcome, std::string(name(strategy)));
  }
}

TEST(KfacRanksTest, DoesSoWithTruncatedEigenbases) {
  const auto with = [](Strategy strategy, int variant) {
    const ConvFactors forms[] = {ConvFactors::full, ConvFactors::separable, ConvFactors::block};
    auto options = options_for(strategy, 1.0 / 3, forms[variant % 3]);
    options.eigen_rank = EigenRank::of(2);
    options.precompute_outer = variant >= 3;
    if (variant == 5) options.storage = FactorDtype::bf16;
    return options;
  };
  for (int variant = 0; variant < 6; ++variant) {
    const auto reference = train_on(3, with(Strategy::mem_opt, variant));
    for (auto strategy : {Strategy::comm_opt, Strategy::hybrid, Strategy::owner_reduce})
      for (const auto& outcome : train_on(3, with(strategy, variant)))
        expect_bit_equal(reference[0], outcome, std::string(name(strategy)) + " variant " + std::to_string(variant));
  }
}

TEST(KfacRanksTest, RefusesMoreSamplesThanAnyLayerOfAnyRankHasOnEveryRank) {
  std::atomic<int> refusals = 0, taken = 0;
  on_threads({0, 0}, [&](const ddl::Comm& comm, int64_t rank) {
    for (int64_t samples : {150, 151}) {  // each rank has six images of 25 positions
      KfacOptions options = options_for(Strategy::dp);
      options.factor_samples = FactorSamples::at_least(samples);
      try {
        train(options, comm, rank, 2, {.steps = 1});
        ++taken;
      } catch (const BadRequest& error) {
        EXPECT_NE(std::string(error.what()).find("factor_samples = 151 is outside 1 to 150"), std::string::npos)
            << error.what();
        ++refusals;
      }
    }
  });
  EXPECT_EQ(taken, 2);
  EXPECT_EQ(refusals, 2);
}

TEST(KfacRanksTest, DoesSoWithStateIn16BitsAndInBlocks) {
  const auto with = [](Strategy strategy, int variant) {
    auto options = options_for(strategy, 1.0 / 3, variant % 2 ? ConvFactors::block : ConvFactors::separable);
    options.storage = variant < 2 ? FactorDtype::bf16 : FactorDtype::fp16;
    options.method = variant == 3 ? Method::pi : Method::eigen;
    options.precompute_outer = variant == 1;
    options.staleness = variant == 2;
    return options;
  };
  for (int variant = 0; variant < 4; ++variant) {
    const auto reference = train_on(3, with(Strategy::mem_opt, variant));
    for (auto strategy : {Strategy::comm_opt, Strategy::hybrid, Strategy::owner_reduce})
      for (const auto& outcome : train_on(3, with(strategy, variant)))
        expect_bit_equal(reference[0], outcome, std::string(name(strategy)) + " variant " + std::to_string(variant));
  }
}

TEST(KfacRanksTest, AdaptsTheDampingAlikeFromTheMeanOfTheLosses) {
  std::vector<double> scales(2);
  on_threads({0, 0}, [&](const ddl::Comm& comm, int64_t rank) {
    auto model = small_model();
    Kfac kfac(*model, {}, comm);
    const auto loss = model->forward(global_batch()).pow(2).sum(1).mean();
    kfac.watch(loss, kGlobalBatch);
    loss.backward();
    kfac.step();
    // Alone, rank 0 would damp less and rank 1 more. Summed over both ranks, the loss rises.
    kfac.adapt_damping(1, rank == 0 ? 0 : 3);
    scales[static_cast<size_t>(rank)] = kfac.counters().damping_scale;
  });
  EXPECT_EQ(scales, (std::vector<double>{1 / 0.95, 1 / 0.95}));
}

TEST(KfacRanksTest, GivesTheSameBitsOnEveryRankAndUnderEveryStrategyWithStaleness) {
  const auto train_stale = [](KfacOptions options, bool outer) {
    options.staleness = 1;
    options.precompute_outer = outer;
    return train_on(3, options, {.steps = 6});
  };
  for (bool outer : {false, true}) {
    const auto expected = train_stale(options_for(Strategy::comm_opt), outer);
    for (const auto& options : exact_strategies(3))
      for (const auto& rank : train_stale(options, outer)) expect_bit_equal(expected[0], rank, describe(options, 3));
    const auto own_batches = train_stale(options_for(Strategy::dp), outer);
    for (const auto& rank : own_batches) expect_bit_equal(own_batches[0], rank, "dp");
  }
}

TEST(KfacRanksTest, KeepsEigenvectorsAlikeUnderEveryStrategy) {
  const auto x = at::arange(32 * 130, at::kFloat).mul(0.37).sin().view({32, 130});
  const auto train_warm = [&](KfacOptions options) {
    options.factor_interval = options.inverse_interval = 1;
    options.decay = 0.5;
    options.warm_start = 1e-2;
    std::vector<Outcome> outcomes(2);
    std::atomic<int64_t> kept = 0;
    on_threads({0, 0}, [&](const ddl::Comm& comm, int64_t rank) {
      nn::Sequential model(nn::Linear(130, 3));
      at::NoGradGuard no_grad;
      for (auto& parameter : model->parameters())
        parameter.copy_(at::arange(parameter.numel(), at::kFloat).cos().view(parameter.sizes()));
      at::AutoGradMode with_grad(true);
      Kfac kfac(*model, options, comm);
      for (int step = 0; step < 3; ++step) {  // the weights stay
        model->zero_grad();
        const auto loss = model->forward(x).pow(2).sum(1).mean();
        kfac.watch(loss, 32);
        loss.backward();
        kfac.step();
      }
      kept += kfac.counters().warm_starts;
      for (const auto& parameter : model->parameters())
        outcomes[static_cast<size_t>(rank)].gradients.push_back(parameter.grad().clone());
    });
    EXPECT_EQ(kept, 2) << "of A, whose side is above 128, in two steps";
    return outcomes;
  };
  const auto expected = train_warm(options_for(Strategy::comm_opt));
  for (const auto& options : exact_strategies(2))
    for (const auto& rank : train_warm(options)) expect_bit_equal(expected[0], rank, describe(options, 2));
  const auto own_batches = train_warm(options_for(Strategy::dp));
  expect_bit_equal(own_batches[0], own_batches[1], "dp");
}

TEST(KfacRanksTest, HoldsExactlyTheBytesOfTheFormulaOnEveryRank) {
  auto all = exact_strategies(4, ConvFactors::separable);
  all.push_back(options_for(Strategy::dp, 1, ConvFactors::separable));
  for (auto& options : all) {
    options.precompute_outer = options.grad_worker_frac == 0.5;
    if (options.strategy == Strategy::mem_opt || options.grad_worker_frac == 0.25) options.storage = FactorDtype::bf16;
    const auto outcomes = train_on(4, options);
    const auto expected = bytes_per_rank(outcomes[0].shapes, outcomes[0].assignments);
    for (size_t rank = 0; rank < outcomes.size(); ++rank) {
      EXPECT_EQ(outcomes[rank].bytes.factors, expected[rank].factors) << describe(options, 4);
      EXPECT_EQ(outcomes[rank].bytes.eigenbases, expected[rank].eigenbases) << describe(options, 4);
      EXPECT_EQ(outcomes[rank].bytes.scales, expected[rank].scales) << describe(options, 4);
    }
  }
}

TEST(KfacRanksTest, GivesEachLayerItsOwnShareOfWorkersWithoutChangingABit) {
  auto options = options_for(Strategy::owner_reduce);
  options.layer_grad_worker_fracs = {1, 0.25, 0.5};
  const auto outcomes = train_on(4, options);
  EXPECT_EQ(outcomes[0].assignments[1].workers.size(), 1u);
  expect_bit_equal(train_on(4, options_for(Strategy::comm_opt))[0], outcomes[3], "shares by layer");
}

TEST(KfacRanksTest, WeighsRanksByTheSamplesThatTheySaw) {
  const auto single = train(options_for(Strategy::hybrid), {}, 0, 1);
  for (const std::vector<int64_t>& samples : {std::vector<int64_t>{7, 5}, {2, 9, 1}, {5, 0, 7}, {0, 12, 0}})
    for (auto strategy : {Strategy::comm_opt, Strategy::owner_reduce}) {
      const auto world = static_cast<int>(samples.size());
      const auto outcomes = train_on(world, options_for(strategy), {.samples = samples});
      for (const auto& rank : outcomes) expect_close(rank, single, 1e-3, describe(rank.options, world));
    }
}

TEST(KfacRanksTest, KeepsItsFactorsInAStepInWhichNobodyHasASample) {
  on_threads({0, 0}, [](const ddl::Comm& comm, int64_t rank) {
    auto model = small_model();
    Kfac kfac(*model, {.strategy = Strategy::hybrid}, comm);
    const auto step = [&](const at::Tensor& x) {
      model->zero_grad();
      at::Tensor loss;
      if (x.defined()) loss = model->forward(x).pow(2).sum(1).mean();
      kfac.watch(loss, x.defined() ? x.size(0) : 0);
      if (loss.defined()) loss.backward();
      average_gradients(*model, comm, 1);
      kfac.step();
    };
    step(share_of({}, rank, 2));
    const auto before = kfac.state().factor(0, 0).clone();
    step({});
    EXPECT_TRUE(kfac.state().factor(0, 0).equal(before));
    EXPECT_EQ(kfac.counters().dropped_factors, 0);
  });
}

TEST(KfacRanksTest, KeepsTheGradientOfALayerThatNeverRanOnAnyRank) {
  for (auto strategy : {Strategy::hybrid, Strategy::owner_reduce, Strategy::dp})
    for (auto dtype : {FactorDtype::fp32, FactorDtype::fp16})
      on_threads({0, 0, 0}, [&](const ddl::Comm& comm, int64_t rank) {
        nn::Module model;
        auto running = model.register_module("running", small_model());
        auto idle = model.register_module("idle", nn::Linear(3, 2));
        auto options = options_for(strategy);
        options.factor_dtype = dtype;
        options.kl_clip = std::numeric_limits<double>::infinity();
        Kfac kfac(model, options, comm);
        // The last layer is not part of the loss, and gets its gradient from elsewhere.
        const auto x = share_of({}, rank, 3);
        const auto loss = running->forward(x).pow(2).sum(1).mean();
        kfac.watch(loss, x.size(0));
        loss.backward();
        for (auto& parameter : idle->parameters()) parameter.mutable_grad() = at::full_like(parameter, 3);
        average_gradients(model, comm, 1);
        kfac.step();
        for (const auto& parameter : idle->parameters())
          EXPECT_TRUE(parameter.grad().equal(at::full_like(parameter, 3)));
      });
}

TEST(KfacRanksTest, RefusesDoublesBetweenRanksOnAllOfThem) {
  for (const bool all : {true, false})
    on_threads({0, 0}, [&](const ddl::Comm& comm, int64_t rank) {
      nn::Linear linear(2, 2);
      if (all || rank == 1) linear->to(at::kDouble);
      if (all || rank == 1)
        EXPECT_THROW((Kfac{*linear, {}, comm}), c10::Error);
      else
        EXPECT_THROW((Kfac{*linear, {}, comm}), BadRequest) << "rank 1 refuses";
    });
}

/// Checks a side as large as that of a vocabulary's head.
TEST(KfacRanksTest, RefusesSidesThatCannotBeStaleOnEveryRank) {
  on_threads({0, 0}, [&](const ddl::Comm& comm, int64_t) {
    nn::Linear head(nn::LinearOptions(1, 32768).bias(false));
    EXPECT_THROW((Kfac{*head, {.staleness = 1}, comm}), BadRequest);
  });
}

TEST(KfacRanksTest, RefusesBadOptionsOfOneRankOnAllOfThem) {
  on_threads({0, 0, 0}, [&](const ddl::Comm& comm, int64_t rank) {
    nn::Linear linear(2, 2);
    EXPECT_THROW((Kfac{*linear, {.burn_in = rank == 1 ? -1 : 10}, comm}), BadRequest);
  });
}

TEST(KfacRanksTest, RefusesOtherLayersOrOtherOptionsOnEveryRank) {
  std::atomic<int> refusals = 0;
  const auto count_refusals = [&](const ddl::Comm& comm, nn::Sequential model, const KfacOptions& options) {
    try {
      Kfac kfac(*model, options, comm);
    } catch (const BadRequest& error) {
      EXPECT_NE(std::string(error.what()).find("rank 1 of 2"), std::string::npos) << error.what();
      ++refusals;
    }
  };
  on_threads({0, 0}, [&](const ddl::Comm& comm, int64_t rank) {
    count_refusals(comm, nn::Sequential(nn::Linear(2, 3 + rank), nn::Linear(3 + rank, 1)), {});
  });
  EXPECT_EQ(refusals, 2) << "shapes";
  on_threads({0, 0}, [&](const ddl::Comm& comm, int64_t rank) {
    nn::Sequential model(nn::Linear(2, 3));
    if (rank == 1) model->push_back(nn::Linear(3, 1));
    count_refusals(comm, model, {});
  });
  EXPECT_EQ(refusals, 4) << "numbers";
  on_threads({0, 0}, [&](const ddl::Comm& comm, int64_t rank) {
    count_refusals(comm, nn::Sequential(nn::Linear(2, 3)),
                   {.strategy = rank == 0 ? Strategy::hybrid : Strategy::owner_reduce});
  });
  EXPECT_EQ(refusals, 6) << "strategies";
  const std::vector<KfacOptions> others{{.method = Method::pi},
                                        {.convention = Convention::kaisa},
                                        {.lr = 0.2},
                                        {.factor_interval = 1},
                                        {.factor_interval = 3},
                                        {.inverse_interval = 9},
                                        {.burn_in = 3},
                                        {.relative_damping = 0.301},
                                        {.damping_scope = DampingScope::layer},
                                        {.damping = 0.3},
                                        {.kl_clip = 1},
                                        {.norm_clip = 0.5},
                                        {.decay = 0.9},
                                        {.factor_samples = FactorSamples::exact()},
                                        {.eigen_rank = EigenRank::full()},
                                        {.seed = 1}};
  for (size_t i = 0; i < others.size(); ++i) {
    on_threads({0, 0}, [&](const ddl::Comm& comm, int64_t rank) {
      count_refusals(comm, nn::Sequential(nn::Linear(2, 3)), rank == 0 ? KfacOptions{} : others[i]);
    });
    EXPECT_EQ(refusals, 8 + 2 * static_cast<int>(i)) << "other numbers, " << i;
  }
}

TEST(KfacRanksTest, RefusesAShareThatIsNone) {
  on_threads({0, 0}, [](const ddl::Comm& comm, int64_t) {
    EXPECT_THROW(Kfac(*small_model(), options_for(Strategy::hybrid, 0.3), comm), BadRequest);
  });
}

TEST(KfacRanksTest, MeasuresOnRank0WhereItHasNoSeconds) {
  std::vector<std::vector<Assignment>> plans(2);
  std::vector<double> seconds(2);
  on_threads({0, 0}, [&](const ddl::Comm& comm, int64_t rank) {
    auto options = options_for(Strategy::hybrid);
    options.placement = Placement::measured;
    if (rank == 1) options.decomposition_seconds = [](int64_t, int64_t) { return 1e9; };
    const Kfac kfac(*small_model(), options, comm);
    plans[static_cast<size_t>(rank)] = kfac.state().assignments();
    seconds[static_cast<size_t>(rank)] = kfac.options().decomposition_seconds(37, 1);
  });
  for (size_t l = 0; l < 3; ++l) EXPECT_EQ(plans[0][l].owners, plans[1][l].owners);
  EXPECT_EQ(seconds[0], seconds[1]);
  EXPECT_GT(seconds[0], 0);
  EXPECT_LT(seconds[0], 10);
}

TEST(KfacRanksTest, PlacesByTheSecondsThatRank0Measured) {
  std::vector<std::vector<Assignment>> plans(2);
  on_threads({0, 0}, [&](const ddl::Comm& comm, int64_t rank) {
    auto options = options_for(Strategy::hybrid);
    options.placement = Placement::measured;
    options.decomposition_seconds = [rank](int64_t side, int64_t) {
      return rank == 0 ? static_cast<double>(side) : 1 / static_cast<double>(side);
    };
    plans[static_cast<size_t>(rank)] = Kfac(*small_model(), options, comm).state().assignments();
  });
  for (size_t l = 0; l < 3; ++l) EXPECT_EQ(plans[0][l].owners, plans[1][l].owners);
  // Rank 0's clock gives the sides 19 + 4, 2 · (18 + 2) and 37 + 3. The last two layers are the costliest.
  EXPECT_NE(plans[0][1].owners, plans[0][2].owners);
}

}  // namespace spillway::kfac
