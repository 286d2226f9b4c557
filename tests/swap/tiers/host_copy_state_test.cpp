// Tests that copies in the host tier change their state only along the table of states.
#include "swap/tiers/host_copy_state.h"

#include <gtest/gtest.h>

#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include "swap/tiers/host_tier.h"
#include "tests/support/copies.h"

namespace spillway {
using namespace swap;
namespace {

using enum HostCopyState;

constexpr HostCopyState kStates[] = {waiting, in_slab,     spilling,   in_both, writing,
                                     on_disk, prefetching, unreadable, lost,    dropped};

TEST(HostCopyStateTest, NothingFollowsButWhatTheTableSays) {
  const std::set<std::pair<HostCopyState, HostCopyState>> table{
      {waiting, in_slab},       {waiting, writing},  {waiting, lost},        {in_slab, spilling},
      {spilling, in_both},      {spilling, in_slab}, {in_both, on_disk},     {in_both, in_slab},
      {writing, on_disk},       {writing, lost},     {on_disk, prefetching}, {prefetching, in_both},
      {prefetching, unreadable}};
  for (HostCopyState from : kStates)
    for (HostCopyState to : kStates) {
      const bool ends = to == dropped && from != dropped;
      EXPECT_EQ(may_follow(from, to), ends || table.contains({from, to})) << name(from) << " to " << name(to);
    }
}

struct StateOfACopyTest : ::testing::Test {
  HostSlab slab{1 << 20};
  testing::SameThreadTimeline lane;
  HostTier tier{slab, lane, lane, nullptr};
  HostCopy::State copy{tier, 1000, {}};
};

TEST_F(StateOfACopyTest, RefusesAStateThatMayNotFollowAndNamesBoth) {
  try {
    copy.enter(on_disk);
    FAIL() << "the bytes would be nowhere";
  } catch (const std::logic_error& error) {
    EXPECT_EQ(std::string(error.what()), "[host tier] a copy of 1000 bytes is waiting, which on_disk may not follow");
  }
  EXPECT_TRUE(copy.is(waiting));
}

TEST_F(StateOfACopyTest, MovesOnlyWhileTheDiskWritesOrReads) {
  for (HostCopyState next : {in_slab, spilling, in_both, on_disk, prefetching, unreadable}) {
    copy.enter(next);
    EXPECT_EQ(copy.is_moving(), next == spilling || next == prefetching) << name(next);
  }
}

TEST_F(StateOfACopyTest, ADroppedCopyStaysDroppedWhenItsMoveEnds) {
  copy.enter(writing);
  copy.enter(dropped);
  copy.enter(on_disk);
  EXPECT_TRUE(copy.is(dropped));
  EXPECT_FALSE(copy.is_moving());
}

}  // namespace
}  // namespace spillway
