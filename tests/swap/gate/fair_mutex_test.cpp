// Tests of the mutex that hands turns out in order. They need no LibTorch, so the thread sanitizer sees them.
#include "swap/gate/fair_mutex.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace spillway::swap {
namespace {

TEST(FairMutexTest, OneThreadAtATimeIsInside) {
  FairMutex mutex;
  int64_t inside = 0, turns = 0;  // ordinary variables, which only the mutex protects
  auto work = [&] {
    for (int i = 0; i < 5000; ++i) {
      std::unique_lock lock(mutex);
      EXPECT_EQ(++inside, 1);
      ++turns;
      --inside;
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(turns, 4 * 5000);
  EXPECT_EQ(mutex.asked(), 4 * 5000);
}

TEST(FairMutexTest, ThreadsEnterInTheOrderInWhichTheyAskedAndOneThatAsksAgainIsLast) {
  for (int round = 0; round < 20; ++round) {
    FairMutex mutex;
    std::vector<int> order;
    std::unique_lock lock(mutex);
    std::vector<std::thread> others;
    for (int i = 1; i <= 3; ++i) {
      others.emplace_back([&, i] {
        std::unique_lock turn(mutex);
        order.push_back(i);
      });
      while (mutex.asked() != static_cast<uint32_t>(i) + 1) std::this_thread::yield();
    }
    lock.unlock();
    lock.lock();
    order.push_back(4);
    lock.unlock();
    for (std::thread& other : others) other.join();
    EXPECT_EQ(order, (std::vector<int>{1, 2, 3, 4}));
  }
}

}  // namespace
}  // namespace spillway::swap
