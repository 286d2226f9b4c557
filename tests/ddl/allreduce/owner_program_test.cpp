#include "ddl/allreduce/owner_program.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "tests/support/ddl/shapes.h"

namespace spillway::ddl {
namespace {

using testing::by_host;
using testing::dealt;

std::vector<Levels> trees() {
  std::vector<Levels> trees;
  for (const auto& hosts : testing::both_orders({{1}, {5}, {4, 4}, {3, 3, 3}, {4, 2}, {1, 2, 3}}))
    trees.emplace_back(static_cast<int>(hosts.size()), std::vector<std::vector<int>>{hosts});
  trees.push_back(Levels::parse("2x2x2", 8));
  trees.emplace_back(6, std::vector<std::vector<int>>{{0, 0, 1, 2, 2, 2}, {0, 0, 0, 1, 1, 1}});
  return trees;
}

}  // namespace

TEST(PartsTest, EqualPartsCoverTheVectorInTheOrderOfRanks) {
  EXPECT_EQ(equal_parts(0, 3).size(), 0u);
  const auto parts = equal_parts(7, 3);
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[0].range, (Range{0, 2}));
  EXPECT_EQ(parts[2].range, (Range{4, 7}));
  EXPECT_EQ(parts[2].owner, 2);
  EXPECT_EQ(equal_parts(1, 3).size(), 1u);
  // No product of large numbers overflows.
  EXPECT_EQ(equal_parts(int64_t{1} << 62, 1000).back().range.end, int64_t{1} << 62);
}

TEST(PartsTest, PartsWithinAreCountedFromTheFirstElement) {
  const std::vector<OwnedPart> parts{{{0, 10}, 1}, {{12, 20}, 0}};
  const auto inside = parts_within(parts, {5, 15});
  ASSERT_EQ(inside.size(), 2u);
  EXPECT_EQ(inside[0].range, (Range{0, 5}));
  EXPECT_EQ(inside[1].range, (Range{7, 10}));
  EXPECT_EQ(parts_within(parts, {10, 12}).size(), 0u);
}

TEST(PartsTest, MessagesHaveTheSizesThatTheirPeersExpect) {
  for (const Levels& levels : trees())
    for (const bool gather : {false, true}) {
      std::map<std::pair<int, int>, std::vector<std::pair<int64_t, bool>>> sent, received;
      const std::vector<OwnedPart> parts{{{0, 10}, levels.size() - 1}, {{10, 11}, 0}, {{30, 101}, levels.size() / 2}};
      for (int rank = 0; rank < levels.size(); ++rank) {
        const Program program =
            gather ? gather_program(levels, rank, parts) : reduce_program(levels, rank, parts, Element::bfloat16);
        EXPECT_EQ(static_cast<int>(program.rounds.size()), levels.count());
        EXPECT_EQ(program.collecting_rounds, gather ? 0 : levels.count());
        for (const Round& round : program.rounds) {
          for (const auto& t : round.sends) sent[{rank, t.peer}].emplace_back(t.range.size(), t.partial);
          for (const auto& t : round.receives) received[{t.peer, rank}].emplace_back(t.range.size(), t.partial);
        }
      }
      EXPECT_EQ(sent, received) << levels.shape();
    }
}

/// Checks that (N − 1)/N of the elements that a host's ranks have leaves the host, however many ranks it has.
TEST(PartsTest, APartCrossesHostsOnceAHost) {
  for (const auto& hosts : {by_host({3, 3}), dealt({4, 4}), by_host({2, 2, 2})}) {
    const Levels levels(static_cast<int>(hosts.size()), {hosts});
    const auto parts = equal_parts(36'000, levels.size());
    const auto of_hosts = static_cast<int64_t>(levels.groups(1).size());
    for (const bool gather : {false, true}) {
      std::map<int, int64_t> leaves;
      for (int rank = 0; rank < levels.size(); ++rank) {
        const Program program =
            gather ? gather_program(levels, rank, parts) : reduce_program(levels, rank, parts, Element::float32);
        for (const Round& round : program.rounds)
          for (const auto& t : round.sends)
            if (hosts[rank] != hosts[t.peer]) leaves[hosts[rank]] += t.range.size();
      }
      for (const auto& [host, elements] : leaves) EXPECT_EQ(elements, 36'000 * (of_hosts - 1) / of_hosts) << gather;
    }
  }
}

}  // namespace spillway::ddl
