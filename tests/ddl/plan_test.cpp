#include "ddl/plan.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/support/ddl_shapes.h"

namespace spillway::ddl {
namespace {

using testing::both_orders;
using testing::by_host;

std::vector<std::vector<int>> shapes() {
  return both_orders({{1}, {2}, {5}, {1, 1, 1}, {4, 4}, {3, 3}, {4, 2}, {3, 1}, {1, 2, 3}, {7, 5, 3}});
}

TEST(PlanTest, EveryElementHasOneHomeAndOneRankInChargePerHost) {
  for (const auto& hosts : shapes()) {
    const Plan plan(hosts);
    for (const int64_t count : {0, 1, 7, 100, 1009}) {
      int64_t next = 0;
      for (int64_t block = 0; block < plan.block_count(); ++block) {
        for (int host = 0; host < plan.host_count(); ++host) {
          const Range part = plan.part(block, host, count);
          EXPECT_EQ(part.begin, next);
          next = part.end;
          const int rank = plan.in_charge(host, block);
          EXPECT_EQ(plan.host_of(rank), host);
          const Range piece = plan.piece(host, plan.local_rank_of(rank), count);
          EXPECT_LE(piece.begin, part.begin);
          EXPECT_GE(piece.end, part.end);
        }
      }
      EXPECT_EQ(next, count);
    }
  }
}

/// The bytes that leave a host, counted message by message, against the cut bound 2(N-1)/N·S.
TEST(PlanTest, WhatLeavesAHostIsTheCutBound) {
  for (const auto& hosts : shapes()) {
    const Plan plan(hosts);
    const int64_t count = 1'000'000;
    const int n = plan.host_count();
    for (int host = 0; host < n; ++host) {
      std::vector<int64_t> sent(plan.size());
      for (int64_t block = 0; block < plan.block_count(); ++block) {
        for (int other = 0; other < n; ++other) {
          if (other == host) continue;
          sent[plan.in_charge(host, block)] += plan.part(block, other, count).size();  // reduce-scatter
          sent[plan.in_charge(host, block)] += plan.part(block, host, count).size();   // all-gather
        }
      }
      const int64_t bound = 2 * (n - 1) * count / n;
      int64_t total = 0;
      const auto width = static_cast<int64_t>(plan.ranks_of(host).size());
      for (const int rank : plan.ranks_of(host)) {
        total += sent[rank];
        EXPECT_NEAR(sent[rank], bound / width, 4 * n * plan.block_count()) << plan.shape();
      }
      EXPECT_NEAR(total, bound, 4 * n * plan.block_count()) << plan.shape();
    }
  }
}

TEST(PlanTest, EqualHostsNeedNoMoreBlocksThanRanksPerHost) {
  EXPECT_EQ(Plan(by_host({4, 4, 4})).block_count(), 4);
  EXPECT_EQ(Plan(by_host({4, 2})).block_count(), 4);
  EXPECT_EQ(Plan(by_host({3, 2})).block_count(), 4);
}

TEST(PlanTest, LargeCountsDoNotOverflow) {
  const Plan plan(by_host({7, 5, 3}));
  const int64_t count = int64_t{1} << 61;
  EXPECT_EQ(plan.piece(0, 6, count).end, count);
  EXPECT_NEAR(static_cast<double>(plan.piece(2, 0, count).size()), static_cast<double>(count) / 3, 1e3);
}

TEST(PlanTest, ExplainsItsLevels) {
  const std::string text = Plan(by_host({4, 2})).explain(12'000'000);
  EXPECT_NE(text.find("6 ranks on 2 hosts (4+2)"), std::string::npos) << text;
  EXPECT_NE(text.find("level 2, between 2 hosts"), std::string::npos) << text;
  EXPECT_NE(text.find("11.4 MiB"), std::string::npos) << text;
  EXPECT_NE(Plan({0}).explain(8).find("nothing to send"), std::string::npos);
}

TEST(PlanTest, TheHashTellsShapesAndOrdersApart) {
  EXPECT_EQ(Plan(by_host({4, 2})).hash(), Plan(by_host({4, 2})).hash());
  EXPECT_NE(Plan(by_host({4, 2})).hash(), Plan(testing::dealt({4, 2})).hash());
  EXPECT_NE(Plan(by_host({4, 2})).hash(), Plan(by_host({3, 3})).hash());
}

TEST(PlanTest, DeclaredLevelsAreRanksPerHostTimesHosts) {
  EXPECT_EQ(parse_levels("4x2", 8), by_host({4, 4}));
  EXPECT_EQ(parse_levels("2x2x2", 8), by_host({2, 2, 2, 2}));
  EXPECT_EQ(parse_levels("4+2", 6), by_host({4, 2}));
  EXPECT_EQ(parse_levels("5", 5), by_host({5}));
}

TEST(PlanTest, DeclaredLevelsThatDoNotMakeTheWorldAreRefusedWithBothNumbers) {
  try {
    parse_levels("4x2", 6);
    FAIL() << "8 ranks were declared in a world of 6";
  } catch (const BadRequest& error) {
    EXPECT_STREQ(error.what(), "[ddl] levels '4x2' make 8 ranks, but 6 are running");
  }
  for (const char* text : {"", "x", "4x", "4x2+1", "-4", "4 x 2", "0x3", "99999999999999999999"}) {
    EXPECT_THROW(parse_levels(text, 6), BadRequest) << text;
  }
  EXPECT_THROW(parse_levels("1000000x1000000x1000000x1000000", 6), BadRequest);
}

TEST(PlanTest, RefusesHostsWithGaps) {
  EXPECT_THROW(Plan({0, 2}), BadRequest);
}

}  // namespace
}  // namespace spillway::ddl
