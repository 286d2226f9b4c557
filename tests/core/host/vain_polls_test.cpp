// Tests of when a wait sleeps.
#include "core/host/vain_polls.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace spillway {
namespace {

TEST(VainPollsTest, SleepAfterTheirNumber) {
  VainPolls polls(3);
  (void)polls.yield();
  (void)polls.yield();
  EXPECT_FALSE(polls.yield());
  EXPECT_FALSE(polls.yield());
  EXPECT_EQ(polls.count(), 4);
  polls.found();
  EXPECT_TRUE(polls.yield()) << "in the next wait";
}

// Without it, the first loop would not end.
TEST(VainPollsTest, SleepAfterAYieldToThreadsThatNeverWait) {
  std::atomic<bool> is_over = false;
  std::vector<std::jthread> busy;
  for (unsigned i = 0; i < 4 * std::thread::hardware_concurrency(); ++i)
    busy.emplace_back([&] {
      while (!is_over) continue;
    });
  VainPolls polls;
  while (polls.yield()) continue;
  EXPECT_FALSE(polls.yield()) << "in the same wait";
  polls.found();
  EXPECT_TRUE(polls.yield()) << "in the next wait";
  is_over = true;
}

}  // namespace
}  // namespace spillway
