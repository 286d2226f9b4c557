// The conformance suite over worlds without a launcher: one rank alone, threads, and threads with delayed messages.
#include "ddl/comm/thread_world.h"

#include <thread>

#include "ddl/comm/communicator.h"
#include "tests/support/ddl/conformance.h"
#include "tests/support/ddl/delayed_transport.h"
#include "tests/support/ddl/shapes.h"

namespace spillway::ddl::testing {
namespace {

struct SelfWorld {
  static std::vector<std::vector<int>> shapes() { return {{0}}; }
  static void run(const std::vector<int>&, const std::function<void(Communicator&)>& body) {
    body(*self_communicator());
  }
};

struct Threads {
  static std::vector<std::vector<int>> shapes() {
    return both_orders({{1},
                        {2},
                        {1, 1},
                        {5},
                        {8},
                        {1, 1, 1, 1, 1, 1, 1, 1},
                        {4, 4},
                        {2, 2, 2, 2},
                        {3, 3},
                        {2, 2, 2},
                        {4, 2},
                        {2, 4},
                        {3, 1},
                        {1, 3},
                        {3, 2},
                        {1, 2, 3},
                        {5, 3, 2}});
  }
  static void run(const std::vector<int>& hosts, const std::function<void(Communicator&)>& body) {
    ThreadWorld world(hosts);
    run_ranks(world, body);
  }
};

struct DelayedThreads {
  static std::vector<std::vector<int>> shapes() { return both_orders({{2}, {4, 2}, {3, 1}, {2, 2, 2}}); }
  static void run(const std::vector<int>& hosts, const std::function<void(Communicator&)>& body) {
    ThreadWorld world(hosts);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < world.size(); ++rank) {
      threads.emplace_back([&, rank] {
        Communicator comm(std::make_unique<DelayedTransport>(world.transport(rank), 7 * rank + 1));
        EXPECT_NO_THROW(body(comm));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
};

}  // namespace

INSTANTIATE_TYPED_TEST_SUITE_P(Self, AllreduceConformance, SelfWorld);
INSTANTIATE_TYPED_TEST_SUITE_P(Self, CollectivesConformance, SelfWorld);
INSTANTIATE_TYPED_TEST_SUITE_P(Self, CommunicatorConformance, SelfWorld);
INSTANTIATE_TYPED_TEST_SUITE_P(Self, CourierConformance, SelfWorld);
INSTANTIATE_TYPED_TEST_SUITE_P(Threads, AllreduceConformance, Threads);
INSTANTIATE_TYPED_TEST_SUITE_P(Threads, CollectivesConformance, Threads);
INSTANTIATE_TYPED_TEST_SUITE_P(Threads, CommunicatorConformance, Threads);
INSTANTIATE_TYPED_TEST_SUITE_P(Threads, CourierConformance, Threads);
INSTANTIATE_TYPED_TEST_SUITE_P(DelayedThreads, AllreduceConformance, DelayedThreads);
INSTANTIATE_TYPED_TEST_SUITE_P(DelayedThreads, CollectivesConformance, DelayedThreads);
INSTANTIATE_TYPED_TEST_SUITE_P(DelayedThreads, CommunicatorConformance, DelayedThreads);
INSTANTIATE_TYPED_TEST_SUITE_P(DelayedThreads, CourierConformance, DelayedThreads);

TEST(AllreduceTest, DelaysDoNotChangeTheBits) {
  const std::vector<int> hosts = dealt({4, 2});
  std::vector<float> prompt(5003);
  std::vector<float> delayed(5003);
  const auto reduce_into = [](std::vector<float>& result) {
    return [&result](Communicator& comm) {
      std::vector<float> data = contribution(comm.rank(), 5003);
      Allreduce(comm).reduce(data, Reduction::sum);
      if (comm.rank() == 3) result = data;
    };
  };
  Threads::run(hosts, reduce_into(prompt));
  DelayedThreads::run(hosts, reduce_into(delayed));
  EXPECT_TRUE(same_bits(prompt, delayed));
}

TEST(AllreduceTest, CountsWhatItHasDone) {
  Threads::run({0, 0}, [](Communicator& comm) {
    Allreduce allreduce(comm);
    std::vector<float> data(100);
    allreduce.reduce(data, Reduction::sum);
    allreduce.reduce(data, Reduction::sum);
    EXPECT_EQ(allreduce.totals().calls, 2);
    EXPECT_EQ(allreduce.totals().bytes, 800);
    EXPECT_GT(allreduce.totals().time.count(), 0);
  });
}

TEST(AllreduceTest, TheOrderOfSummationIsRanksOfAHostThenHosts) {
  const std::vector<int> hosts = dealt({3, 2});  // 0 1 0 1 0
  Threads::run(hosts, [](Communicator& comm) {
    std::vector<float> data = contribution(comm.rank(), 777);
    Allreduce(comm).reduce(data, Reduction::sum);
    std::vector<std::vector<float>> x;
    for (int rank = 0; rank < 5; ++rank) x.push_back(contribution(rank, 777));
    for (int k = 0; k < 777; ++k) EXPECT_EQ(data[k], ((x[0][k] + x[2][k]) + x[4][k]) + (x[1][k] + x[3][k]));
  });
}

}  // namespace spillway::ddl::testing
