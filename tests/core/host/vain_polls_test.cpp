// Tests of when a wait sleeps.
#include "core/host/vain_polls.h"

#include <gtest/gtest.h>

namespace spillway {
namespace {

TEST(VainPollsTest, SleepAfterTheirNumber) {
  VainPolls polls(100);
  EXPECT_TRUE(polls.yield());
  while (polls.count() < 99) (void)polls.yield();
  EXPECT_FALSE(polls.yield());
  EXPECT_FALSE(polls.yield());
  polls.found();
  EXPECT_TRUE(polls.yield());
  EXPECT_FALSE(VainPolls(1).yield());
}

TEST(VainPollsTest, SleepInAWaitThatHasLastedHoweverFewTheyAre) {
  VainPolls polls(1'000'000);
  EXPECT_TRUE(polls.yield());
  std::this_thread::sleep_for(2 * VainPolls::kMostYielding);  // others have the core
  (void)polls.yield();
  EXPECT_FALSE(polls.yield());
  polls.found();
  EXPECT_TRUE(polls.yield()) << "the next wait";
}

}  // namespace
}  // namespace spillway
