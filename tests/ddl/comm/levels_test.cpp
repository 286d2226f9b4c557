#include "ddl/comm/levels.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/support/ddl/shapes.h"

namespace spillway::ddl {
namespace {

using testing::by_host;
using testing::dealt;

std::vector<std::vector<int>> members(const Levels& levels, int level) {
  std::vector<std::vector<int>> result;
  for (const auto& group : levels.groups(level)) result.push_back(group.ranks);
  return result;
}

}  // namespace

TEST(LevelsTest, JoinRanksIntoHostsAndHostsIntoOne) {
  const Levels levels(6, {by_host({4, 2})});
  EXPECT_EQ(levels.count(), 2);
  EXPECT_EQ(members(levels, 1), (std::vector<std::vector<int>>{{0, 1, 2, 3}, {4, 5}}));
  EXPECT_EQ(levels.groups(2).at(0).children, (std::vector{0, 1}));
  EXPECT_EQ(levels.group_of(1, 5), 1);
  EXPECT_EQ(levels.joining(0, 3), 1);
  EXPECT_EQ(levels.joining(0, 4), 2);
  EXPECT_EQ(levels.joining(4, 4), 0);
}

TEST(LevelsTest, GroupsAreNumberedByTheirFirstRanksWhateverTheLabels) {
  const Levels levels(5, {{9, 3, 9, 3, 3}});
  EXPECT_EQ(members(levels, 1), (std::vector<std::vector<int>>{{0, 2}, {1, 3, 4}}));
  EXPECT_EQ(levels.shape(), "2+3");
}

TEST(LevelsTest, ThatJoinNothingAreLeftOut) {
  EXPECT_EQ(Levels(1).count(), 0);
  EXPECT_EQ(Levels(4).count(), 1);
  EXPECT_EQ(Levels(4, {{0, 0, 0, 0}}).count(), 1);
  EXPECT_EQ(Levels(4, {{0, 1, 2, 3}}).count(), 1);
  EXPECT_EQ(Levels(4, {{0, 0, 1, 1}, {0, 0, 1, 1}, {5, 5, 5, 5}}).count(), 2);
}

TEST(LevelsTest, TellTheirShape) {
  EXPECT_EQ(Levels(1).shape(), "1");
  EXPECT_EQ(Levels(5).shape(), "5");
  EXPECT_EQ(Levels(8, {dealt({4, 4})}).shape(), "4x2");
  EXPECT_EQ(Levels::parse("2x3x2", 12).shape(), "2x3x2");
  EXPECT_EQ(Levels::parse("4+2", 6).shape(), "4+2");
  EXPECT_EQ(Levels(6, {{0, 0, 1, 2, 2, 2}, {0, 0, 0, 1, 1, 1}}).shape(), "(2+1)+3");
}

TEST(LevelsTest, AreRanksPerHostTimesHostsByDeclaration) {
  EXPECT_EQ(Levels::parse("4x2", 8).labels(), (std::vector{by_host({4, 4}), std::vector<int>(8, 0)}));
  EXPECT_EQ(Levels::parse("2x2x2", 8).labels(),
            (std::vector{by_host({2, 2, 2, 2}), by_host({4, 4}), std::vector<int>(8, 0)}));
  EXPECT_EQ(Levels::parse("4+2", 6).labels().front(), by_host({4, 2}));
  EXPECT_EQ(Levels::parse("5", 5).count(), 1);
}

TEST(LevelsTest, ThatDoNotMakeTheWorldAreRefusedWithBothNumbers) {
  try {
    (void)Levels::parse("4x2", 6);
    FAIL() << "8 ranks were declared in a world of 6";
  } catch (const BadRequest& error) {
    EXPECT_STREQ(error.what(), "[ddl] levels '4x2' make 8 ranks, but 6 are running");
  }
  for (const char* text : {"", "x", "4x", "4x2+1", "-4", "4 x 2", "0x3", "99999999999999999999"})
    EXPECT_THROW((void)Levels::parse(text, 6), BadRequest) << text;
  EXPECT_THROW((void)Levels::parse("1000000x1000000x1000000x1000000", 6), BadRequest);
}

TEST(LevelsTest, ThatPartWhatOthersJoinedAreRefused) {
  EXPECT_THROW(Levels(4, {{0, 0, 1, 1}, {0, 1, 1, 1}}), BadRequest);
  EXPECT_THROW(Levels(4, {{0, 0, 1}}), BadRequest);
}

TEST(LevelsTest, TheHashTellsShapesAndOrdersApart) {
  const auto hash = [](const std::vector<int>& hosts) {
    return Levels(static_cast<int>(hosts.size()), {hosts}).hash();
  };
  EXPECT_EQ(hash(by_host({4, 2})), hash(by_host({4, 2})));
  EXPECT_NE(hash(by_host({4, 2})), hash(dealt({4, 2})));
  EXPECT_NE(hash(by_host({4, 2})), hash(by_host({3, 3})));
}

}  // namespace spillway::ddl
