#include "ddl/allreduce/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "core/error.h"
#include "ddl/allreduce/program.h"
#include "tests/support/ddl/shapes.h"

namespace spillway::ddl {
namespace {

using testing::by_host;
using testing::dealt;

std::vector<Levels> trees() {
  std::vector<Levels> trees;
  for (const auto& hosts :
       testing::both_orders({{1}, {2}, {5}, {8}, {1, 1, 1}, {4, 4}, {3, 3}, {4, 2}, {3, 1}, {1, 2, 3}, {7, 5, 3}}))
    trees.emplace_back(static_cast<int>(hosts.size()), std::vector<std::vector<int>>{hosts});
  trees.push_back(Levels::parse("2x2x2", 8));
  trees.push_back(Levels::parse("3x2x2", 12));
  trees.emplace_back(6, std::vector<std::vector<int>>{{0, 0, 1, 2, 2, 2}, {0, 0, 0, 1, 1, 1}});
  trees.emplace_back(9, std::vector<std::vector<int>>{{0, 1, 0, 2, 3, 3, 1, 4, 0}, {0, 0, 0, 1, 1, 1, 0, 1, 0}});
  return trees;
}

std::vector<Plan> plans_over(const Levels& levels) {
  constexpr std::array kAll{Algorithm::direct, Algorithm::ring, Algorithm::halving, Algorithm::leader,
                            Algorithm::oneshot};
  std::vector<Plan> plans;
  for (size_t choice = 0, end = static_cast<size_t>(std::pow(5, levels.count())); choice < end; ++choice) {
    std::vector<Algorithm> algorithms;
    for (size_t digits = choice; static_cast<int>(algorithms.size()) < levels.count(); digits /= 5)
      algorithms.push_back(kAll[digits % 5]);
    const auto oneshot = std::find(algorithms.begin(), algorithms.end(), Algorithm::oneshot);
    if (oneshot != algorithms.end() && oneshot + 1 != algorithms.end()) continue;  // oneshot is for the last level only
    plans.emplace_back(levels, algorithms);
  }
  return plans;
}

/// A rank of a world without time, in which every round's messages arrive at once. An element's value has one digit to
/// base 16 for each rank. The digit counts how often that rank's contribution is in the element.
struct Simulated {
  Program program;
  std::vector<uint64_t> input, partial, output;
  std::map<std::pair<int, size_t>, std::vector<uint64_t>> sent;  // by peer and index within the round
  std::map<int64_t, std::vector<uint64_t>> scratch;              // by offset

  std::vector<uint64_t>& at(BufferKind place) {
    return place == BufferKind::input ? input : place == BufferKind::partial ? partial : output;
  }
};

void run_round(std::vector<Simulated>& ranks, size_t index) {
  for (auto& rank : ranks) {
    rank.sent.clear();
    rank.scratch.clear();
    std::map<int, size_t> count;
    for (const auto& t : rank.program.rounds[index].sends) {
      const auto& from = rank.at(t.place);
      rank.sent[{t.peer, count[t.peer]++}] = {from.begin() + t.range.begin, from.begin() + t.range.end};
    }
  }
  for (size_t me = 0; me < ranks.size(); ++me) {
    std::map<int, size_t> count;
    for (const auto& t : ranks[me].program.rounds[index].receives) {
      auto& queue = ranks[static_cast<size_t>(t.peer)].sent;
      const auto message = queue.find({static_cast<int>(me), count[t.peer]++});
      ASSERT_NE(message, queue.end()) << "nothing is sent to " << me << " by " << t.peer;
      ASSERT_EQ(static_cast<int64_t>(message->second.size()), t.range.size());
      if (t.place == BufferKind::scratch)
        ranks[me].scratch[t.offset] = message->second;
      else
        std::copy(message->second.begin(), message->second.end(), ranks[me].output.begin() + t.range.begin);
      queue.erase(message);
    }
  }
  for (auto& rank : ranks) {
    ASSERT_TRUE(rank.sent.empty()) << "a message is not received";
    for (const auto& sum : rank.program.rounds[index].sums)
      for (int64_t k = 0; k < sum.range.size(); ++k) {
        uint64_t total = 0;
        for (const auto& source : sum.sources)
          total += source.place == BufferKind::scratch
                       ? rank.scratch.at(source.offset)[static_cast<size_t>(k)]
                       : rank.at(source.place)[static_cast<size_t>(sum.range.begin + k)];
        rank.partial[static_cast<size_t>(sum.range.begin + k)] = total;
      }
  }
}

void expect_right(const Plan& plan, int64_t count, Element element) {
  std::vector<Simulated> ranks(static_cast<size_t>(plan.size()));
  uint64_t all = 0;
  for (size_t r = 0; r < ranks.size(); ++r) {
    ranks[r].program = plan.program(static_cast<int>(r), count, element);
    const uint64_t once = static_cast<uint64_t>(1) << (4 * r);
    all += once;
    ranks[r].input.assign(static_cast<size_t>(count), once);
    ranks[r].partial.assign(static_cast<size_t>(count), 0);
    ranks[r].output.assign(static_cast<size_t>(count), 0);
  }
  const size_t rounds = ranks[0].program.rounds.size();
  for (size_t round = 0; round <= rounds; ++round) {
    if (static_cast<int>(round) == ranks[0].program.collecting_rounds)
      for (auto& rank : ranks)
        for (const Range& range : rank.program.finished)
          for (int64_t k = range.begin; k < range.end; ++k)
            rank.output[static_cast<size_t>(k)] =
                (plan.size() == 1 ? rank.input : rank.partial)[static_cast<size_t>(k)];
    if (round < rounds) run_round(ranks, round);
    if (::testing::Test::HasFatalFailure()) return;
  }
  for (auto& rank : ranks) {
    EXPECT_EQ(rank.program.rounds.size(), rounds);
    EXPECT_TRUE(std::all_of(rank.output.begin(), rank.output.end(), [&](auto x) { return x == all; }))
        << plan.name() << " on " << plan.levels().shape() << ", " << count;
  }
}

}  // namespace

TEST(PlanTest, EveryElementOfEveryRankGetsEveryContributionOnce) {
  for (const Levels& levels : trees())
    for (const Plan& plan : plans_over(levels))
      for (const int64_t count : {0, 1, 2, 7, 101}) {
        expect_right(plan, count, Element::float32);
        if (HasFatalFailure()) FAIL() << plan.name() << " on " << levels.shape() << ", " << count;
      }
}

TEST(PlanTest, MessagesOfAllRanksHaveTheSizesThatTheirPeersExpect) {
  for (const Levels& levels : trees())
    for (const Plan& plan : plans_over(levels)) {
      std::map<std::pair<int, int>, std::vector<std::pair<int64_t, bool>>> sent, received;  // from, to
      for (int rank = 0; rank < plan.size(); ++rank)
        for (const Round& round : plan.program(rank, 101, Element::bfloat16).rounds) {
          for (const auto& t : round.sends) sent[{rank, t.peer}].emplace_back(t.range.size(), t.partial);
          for (const auto& t : round.receives) received[{t.peer, rank}].emplace_back(t.range.size(), t.partial);
        }
      EXPECT_EQ(sent, received) << plan.name() << " on " << levels.shape();
    }
}

/// Compares the bytes that leave a host, counted message by message, with the cut bound 2(N−1)/N·S.
TEST(PlanTest, WhatLeavesAHostIsTheCutBoundEvenlyOverItsRanks) {
  constexpr int64_t kCount = 1'000'000;
  for (const Levels& levels : trees()) {
    if (levels.count() != 2) continue;
    for (const auto algorithm : {Algorithm::direct, Algorithm::ring}) {
      const Plan plan(levels, algorithm);
      const auto hosts = static_cast<int64_t>(levels.groups(1).size());
      size_t fewest = levels.groups(1).front().ranks.size();
      for (const auto& host : levels.groups(1)) fewest = std::min(fewest, host.ranks.size());
      const int64_t bound = 2 * (hosts - 1) * kCount / hosts * 4;
      const int64_t bound_of_rank = bound / static_cast<int64_t>(fewest);
      const auto traffic = plan.traffic(kCount, Element::float32)[1];
      EXPECT_NEAR(traffic.sent_by_group, bound, 2000) << plan.name() << " on " << levels.shape();
      EXPECT_NEAR(traffic.received_by_group, bound, 2000);
      EXPECT_NEAR(traffic.sent_by_rank, bound_of_rank, 2000);
    }
  }
}

TEST(PlanTest, ARingOfRanksDealtByHostSendsEverythingBetweenHosts) {
  constexpr int64_t kCount = 1'000'000;
  const Plan flat(Levels(8), Algorithm::ring), by_levels(Levels(8, {dealt({4, 4})}), Algorithm::ring);
  EXPECT_EQ(flat.traffic(kCount, Element::float32)[0].sent_by_rank, 2 * 7 * kCount / 8 * 4);
  EXPECT_EQ(by_levels.traffic(kCount, Element::float32)[1].sent_by_rank, kCount / 4 * 4);
}

TEST(PlanTest, SixteenBitFloatsTravelAsFloat32OnlyWhereTheyHaveBeenSummed) {
  constexpr int64_t kCount = 1'200'000;
  const auto direct = Plan(Levels(4)).traffic(kCount, Element::float16);
  EXPECT_EQ(direct[0].sent_by_rank, 2 * 3 * kCount / 4 * 2);
  const auto by_levels = Plan(Levels(4, {by_host({2, 2})})).traffic(kCount, Element::float16);
  EXPECT_EQ(by_levels[0].sent_by_rank, kCount / 2 * 2 * 2);
  EXPECT_EQ(by_levels[1].sent_by_group, kCount / 2 * (4 + 2));
}

TEST(PlanTest, RoundsAreAsManyAsTheAlgorithmsSay) {
  const auto rounds = [](int size, Algorithm algorithm) {
    return Plan(Levels(size), algorithm).program(0, 1000, Element::float32).rounds.size();
  };
  EXPECT_EQ(rounds(8, Algorithm::direct), 2u);
  EXPECT_EQ(rounds(8, Algorithm::ring), 14u);
  EXPECT_EQ(rounds(8, Algorithm::halving), 6u);
  EXPECT_EQ(rounds(6, Algorithm::halving), 6u);
  EXPECT_EQ(rounds(8, Algorithm::leader), 2u);
  EXPECT_EQ(rounds(8, Algorithm::oneshot), 1u);
  EXPECT_EQ(rounds(1, Algorithm::ring), 0u);
}

TEST(PlanTest, OneshotIsForTheLastLevelOnly) {
  const Levels levels(4, {by_host({2, 2})});
  EXPECT_EQ(Plan(levels, {Algorithm::direct, Algorithm::oneshot}).name(), "direct x oneshot");
  EXPECT_THROW(Plan(levels, {Algorithm::oneshot, Algorithm::direct}), BadRequest);
  EXPECT_THROW(Plan(levels, Algorithm::oneshot), BadRequest);
  // Between two ranks, oneshot sends no more than an exchange by parts.
  EXPECT_EQ(Plan(Levels(2), Algorithm::oneshot).traffic(1000, Element::float32)[0].sent_by_rank,
            Plan(Levels(2)).traffic(1000, Element::float32)[0].sent_by_rank);
}

TEST(PlanTest, LargeCountsDoNotOverflow) {
  const Plan plan(Levels(15, {by_host({7, 5, 3})}));
  const int64_t count = int64_t{1} << 60;
  int64_t finished = 0;
  for (int rank = 0; rank < 15; ++rank)
    for (const Range& range : plan.program(rank, count, Element::bfloat16).finished) finished += range.size();
  EXPECT_EQ(finished, count);
}

TEST(PlanTest, OneAlgorithmForEachLevelIsRequired) {
  EXPECT_THROW(Plan(Levels(6, {by_host({4, 2})}), std::vector{Algorithm::ring}), BadRequest);
  EXPECT_NE(Plan(Levels(4), Algorithm::ring).hash(), Plan(Levels(4), Algorithm::direct).hash());
}

}  // namespace spillway::ddl
