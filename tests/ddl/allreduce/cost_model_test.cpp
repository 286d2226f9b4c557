#include "ddl/allreduce/cost_model.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <thread>

#include "core/error.h"
#include "ddl/allreduce/calibration.h"
#include "ddl/comm/thread_world.h"
#include "tests/support/ddl/distant_transport.h"
#include "tests/support/ddl/shapes.h"

namespace spillway::ddl {
namespace {

using testing::by_host;
using testing::dealt;

constexpr int64_t kMega = 1'000'000;

Levels hosts(const std::vector<int>& of_rank) {
  return Levels(static_cast<int>(of_rank.size()), {of_rank});
}

/// Returns the costs of fast links inside hosts and of 25 MB/s between hosts.
Costs slow_network(int levels) {
  Costs costs;
  if (levels == 2) costs.levels.push_back({1e-6, 1e-7, 1e10});
  costs.levels.push_back({50e-6, 5e-6, 25e6});
  costs.reduce_seconds_per_byte = 1e-10;
  return costs;
}

Choice whole(Plan plan) {
  return {std::move(plan), {.chunk_bytes = int64_t{1} << 30}};
}

}  // namespace

TEST(CostModelTest, IsTheSumOfItsRoundsForOneChunk) {
  // T = Σ_i 2[(p_i − 1) α_i + ((p_i − 1)/p_i) S_i/b_i] + γ S (1 − 1/P) for rings on all levels.
  Costs costs{.levels = {{2e-6, 0, 4e9}, {50e-6, 0, 25e6}}, .reduce_seconds_per_byte = 1e-9};
  const double seconds =
      predict_seconds(whole(Plan(hosts(by_host({4, 4, 4})), Algorithm::ring)), 3 * kMega, Element::float32, costs);
  const double size = 12e6;
  const double inside = 2 * (3 * 2e-6 + 3.0 / 4 * size / 4e9);
  const double between = 2 * (2 * 50e-6 + 2.0 / 3 * size / 25e6);  // a host's link carries the data of its four ranks
  EXPECT_NEAR(seconds, inside + between + 1e-9 * size * (1 - 1.0 / 12), 1e-3 * seconds);
}

TEST(CostModelTest, ChunksFollowEachOtherAtTheRateOfTheBusiestLevel) {
  const Levels levels = hosts(by_host({2, 2}));
  const Costs costs = slow_network(2);
  const Plan plan(levels);
  const double one = predict_seconds({plan, {.chunk_bytes = kMega}}, kMega / 4, Element::float32, costs);
  const double ten = predict_seconds({plan, {.chunk_bytes = kMega}}, 10 * kMega / 4, Element::float32, costs);
  const double network = 2 * (50e-6 + 0.5e6 / 25e6) + 2 * 0;  // seconds for which a chunk occupies the link
  EXPECT_NEAR(ten - one, 9 * (network + 2 * 5e-6 * 0), 0.01 * ten);
}

TEST(CostModelTest, CoresThatMoveBytesDoNotAddMeanwhile) {
  // A host has two ranks, and a chunk has 1 MB. Each rank sends and receives 0.5 MB twice, and adds half of the chunk.
  Costs costs{.levels = {{.bytes_per_second = 10e9}}, .reduce_seconds_per_byte = 1e-10};
  const Choice choice{Plan(Levels(2)), {.chunk_bytes = kMega}};
  const auto a_further_chunk = [&] {
    return (predict_seconds(choice, 10 * kMega / 4, Element::float32, costs) -
            predict_seconds(choice, kMega / 4, Element::float32, costs)) /
           9;
  };
  EXPECT_NEAR(a_further_chunk(), 100e-6, 1e-9) << "by cards of their own";
  costs.levels[0].by_cores = true;
  EXPECT_NEAR(a_further_chunk(), 100e-6 + 50e-6, 1e-9);
}

TEST(CostModelTest, ChunksAreOfASizeThatCachesHoldWhereCoresMoveThem) {
  const Costs host{.levels = {{2e-6, 1e-6, 13e9, kWhole, true}}, .reduce_seconds_per_byte = 3e-11};
  const auto chunk = [&](int64_t bytes) { return choose(Levels(2), bytes, host, false).options.chunk_bytes; };
  EXPECT_EQ(chunk(1 << 20), 1 << 20) << "several in turn gain nothing: no resource is idle";
  EXPECT_EQ(chunk(16 << 20), 1 << 20);
}

TEST(CostModelTest, NothingTakesLessThanTheAgreementBesideIt) {
  const Costs costs{.levels = {{1e-6, 0, 1e12}, {50e-6, 0, 1e12}}, .reduce_seconds_per_byte = 0};
  // In both rounds of the agreement some rank's partner is on the other host. The first round of the reduction stays
  // inside a host and takes 1 µs.
  const Plan by_hosts(hosts(by_host({2, 2}))), all(Levels(8), Algorithm::oneshot);
  EXPECT_NEAR(predict_seconds(whole(by_hosts), 1, Element::float32, costs), 2 * 50e-6 + (2 * 50e-6 + 1e-6), 1e-9);
  const Costs flat{.levels = {{50e-6, 0, 1e12}}, .reduce_seconds_per_byte = 0};
  EXPECT_NEAR(predict_seconds(whole(all), 1, Element::float32, flat), 3 * 50e-6, 1e-9);
  EXPECT_NEAR(predict_seconds(whole(all), 0, Element::float32, flat), 3 * 50e-6, 1e-9);
}

TEST(CostModelTest, NothingIsPredictedBelowTheBound) {
  for (const auto& of_rank : testing::both_orders({{2, 2}, {3, 3}, {4, 2}, {3, 1}, {1, 2, 3}, {8}})) {
    const Levels levels = hosts(of_rank);
    const Costs costs = slow_network(levels.count());
    for (const auto algorithm : {Algorithm::direct, Algorithm::ring, Algorithm::halving, Algorithm::leader})
      for (const int64_t count : {int64_t{1}, int64_t{1000}, 4 * kMega})
        EXPECT_GE(predict_seconds(whole(Plan(levels, algorithm)), count, Element::float32, costs) * 1.0001,
                  bound_seconds(levels, 4 * count, costs))
            << levels.shape() << ' ' << name_of(algorithm) << ' ' << count;
  }
}

TEST(CostModelTest, LargeVectorsGoByLevelsNearTheCutBound) {
  for (const auto& of_rank : testing::both_orders({{2, 2}, {2, 2, 2}, {3, 3}, {4, 2}, {4, 4}})) {
    const Levels levels = hosts(of_rank);
    const Costs costs = slow_network(2);
    const Choice best = choose(levels, 64 * kMega, costs, false);
    const double bound = bound_seconds(levels, 64 * kMega, costs);
    EXPECT_LT(predict_seconds(best, 16 * kMega, Element::float32, costs), 1.15 * bound)
        << levels.shape() << ' ' << best.plan.name();
  }
}

TEST(CostModelTest, SmallVectorsTakeFewRounds) {
  Costs costs{.levels = {{10e-6, 8e-6, 1e9}}, .reduce_seconds_per_byte = 0};
  EXPECT_EQ(choose(Levels(16), 64, costs, false).plan.algorithms().front(), Algorithm::halving)
      << "log2 16 rounds instead of 15 messages";
  EXPECT_NE(choose(Levels(16), 64 * kMega, costs, false).plan.algorithms().front(), Algorithm::leader);
}

TEST(CostModelTest, KeepsTheOrderOfSumsWhereThatIsAskedFor) {
  Costs costs{.levels = {{10e-6, 8e-6, 1e9}}, .reduce_seconds_per_byte = 0};
  for (const int64_t bytes : {int64_t{64}, kMega, 64 * kMega})
    EXPECT_TRUE(choose(Levels(16), bytes, costs, true).plan.keeps_order());
}

TEST(CostModelTest, NoPlanIsPredictedShorterThanTheChosenOne) {
  for (const auto& [shape, ranks] :
       std::map<std::string, int>{{"4", 4}, {"4x2", 8}, {"3+2", 5}, {"2x2x2", 8}, {"8x4", 32}}) {
    const Levels levels = Levels::parse(shape, ranks);
    Costs costs = slow_network(1);
    while (static_cast<int>(costs.levels.size()) < levels.count())
      costs.levels.insert(costs.levels.begin(), {1e-6, 1e-7, 1e10});
    for (const int64_t count : {int64_t{100}, int64_t{100'000}, int64_t{1'234'567}, 16 * kMega}) {
      const double chosen = predict_seconds(choose(levels, 4 * count, costs, false), count, Element::float32, costs);
      for (const auto algorithm : {Algorithm::direct, Algorithm::ring, Algorithm::halving, Algorithm::leader})
        for (const int64_t chunk : {int64_t{256} << 10, int64_t{1} << 20, int64_t{4} << 20})
          EXPECT_LE(0.97 * chosen,
                    predict_seconds({Plan(levels, algorithm), {.chunk_bytes = chunk}}, count, Element::float32, costs))
              << shape << ' ' << count << ' ' << name_of(algorithm) << ' ' << chunk;
    }
  }
}

TEST(CostModelTest, RefusesCostsThatAreNone) {
  const Levels levels(4);
  EXPECT_THROW(Costs{}.validate(levels), BadRequest);
  EXPECT_THROW((Costs{.levels = {{1e-6, 0, 0}}}.validate(levels)), BadRequest);
  EXPECT_THROW((Costs{.levels = {{1e-6, 0, 1e9, 10}}}.validate(levels)), BadRequest);
  EXPECT_THROW((Costs{.levels = {{-1, 0, 1e9}}}.validate(levels)), BadRequest);
  EXPECT_THROW((CalibrationOptions{.repeats = 0}.validate()), BadRequest);
}

TEST(CostModelTest, CalibrationGivesAllRanksTheSamePositiveCosts) {
  for (const auto& of_rank : {by_host({1}), by_host({3}), by_host({2, 2}), dealt({3, 1}), by_host({1, 1, 1})}) {
    ThreadWorld world(of_rank);
    std::vector<Costs> costs(of_rank.size());
    run_ranks(world, [&](Communicator& comm) {
      costs[comm.rank()] = calibrate(comm, {.message_bytes = 65536, .repeats = 2});
    });
    for (const auto& mine : costs) {
      EXPECT_NO_THROW(mine.validate(hosts(of_rank)));
      EXPECT_EQ(mine.levels, costs.front().levels);
      for (size_t i = 0; i < mine.levels.size(); ++i)
        EXPECT_EQ(mine.levels[i].by_cores, i == 0 && of_rank != by_host({1, 1, 1})) << "within a host";
      EXPECT_EQ(mine.reduce_seconds_per_byte, costs.front().reduce_seconds_per_byte);
    }
  }
}

/// Checks costs over trees in which groups of one level exchange different numbers of bytes. They do because their
/// children have different numbers of ranks.
TEST(CostModelTest, CalibrationGivesAllRanksTheSameCostsOverUnevenTrees) {
  for (const auto& labels :
       {std::vector<std::vector<int>>{{0, 0, 0, 1, 1, 1, 2, 2, 3, 3}, {0, 0, 0, 0, 0, 0, 1, 1, 1, 1}},
        {{0, 0, 0, 1, 1, 1, 2, 3}, {0, 0, 0, 0, 0, 0, 1, 1}}}) {
    ThreadWorld world(std::vector<int>(labels[0].size(), 0));
    std::vector<Costs> costs(labels[0].size());
    run_ranks(world,
              [&](Communicator& comm) { costs[comm.rank()] = calibrate(comm, {.message_bytes = 1025, .repeats = 1}); },
              {.levels = labels});
    for (const auto& mine : costs) EXPECT_EQ(mine.levels, costs.front().levels);
  }
}

TEST(CostModelTest, CalibrationIsNotFooledByARankThatIsBusyAtFirst) {
  ThreadWorld world(by_host({2}));
  std::vector<Costs> costs(2);
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < world.size(); ++rank)
    ranks.emplace_back([&, rank] {
      constexpr int kOfTheFirstLatency = 40;  // messages of the first latency measurement
      Communicator comm(std::make_unique<testing::DistantTransport>(world.transport(rank), [seen = 0](int) mutable {
        return std::chrono::microseconds(seen++ < kOfTheFirstLatency ? 3000 : 0);
      }));
      costs[static_cast<size_t>(rank)] = calibrate(comm, {.message_bytes = 65536, .repeats = 2});
    });
  ranks.clear();
  EXPECT_EQ(costs[0].levels, costs[1].levels);
  EXPECT_LT(costs[0].levels[0].bytes_per_second, 1e13) << "no memory is that fast";
}

}  // namespace spillway::ddl
