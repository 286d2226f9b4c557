// The conformance suite between processes. mpirun starts it, and every rank runs every test in the same order.
#include "ddl/comm/mpi.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <thread>

#include "ddl/comm/background_queue.h"
#include "tests/support/ddl/conformance.h"
#include "tests/support/ddl/delayed_transport.h"
#include "tests/support/ddl/shapes.h"

namespace spillway::ddl::testing {
namespace {

/// The one runtime of this program. It is global because GoogleTest's tests take no arguments.
MpiRuntime* runtime = nullptr;

struct Mpi {
  /// Returns every shape with as many ranks as are running. One machine declares itself to be several hosts.
  static std::vector<std::vector<int>> shapes() {
    const int ranks = runtime->world()->size();
    std::vector<std::vector<int>> fitting;
    for (const auto& hosts : both_orders({{1},
                                          {2},
                                          {1, 1},
                                          {3},
                                          {2, 1},
                                          {1, 2},
                                          {1, 1, 1},
                                          {4},
                                          {2, 2},
                                          {3, 1},
                                          {1, 3},
                                          {1, 1, 1, 1},
                                          {1, 2, 1}})) {
      if (static_cast<int>(hosts.size()) == ranks) fitting.push_back(hosts);
    }
    EXPECT_FALSE(fitting.empty()) << "no shape has " << ranks << " ranks";
    return fitting;
  }
  static void run(const std::vector<int>& hosts, const std::function<void(Communicator&)>& body) {
    body(*runtime->world({.levels = {hosts}}));
  }
};

struct DelayedMpi : Mpi {
  static void run(const std::vector<int>& hosts, const std::function<void(Communicator&)>& body) {
    auto transport = runtime->transport();
    const unsigned seed = 7 * transport->rank() + 1;
    Communicator comm(std::make_unique<DelayedTransport>(std::move(transport), seed), {.levels = {hosts}});
    body(comm);
  }
};

/// A listener for the ranks other than 0. Rank 0 prints everything, and the others print only failures.
class FailurePrinter final : public ::testing::EmptyTestEventListener {
 public:
  explicit FailurePrinter(int rank) : rank_(rank) {}
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (result.failed()) {
      std::printf("rank %d: %s:%d: %s\n", rank_, result.file_name() ? result.file_name() : "?", result.line_number(),
                  result.message());
    }
  }

 private:
  const int rank_;
};

INSTANTIATE_TYPED_TEST_SUITE_P(Mpi, AllreduceConformance, Mpi);
INSTANTIATE_TYPED_TEST_SUITE_P(Mpi, CollectivesConformance, Mpi);
INSTANTIATE_TYPED_TEST_SUITE_P(Mpi, CommunicatorConformance, Mpi);
INSTANTIATE_TYPED_TEST_SUITE_P(Mpi, CourierConformance, Mpi);
INSTANTIATE_TYPED_TEST_SUITE_P(DelayedMpi, AllreduceConformance, DelayedMpi);
INSTANTIATE_TYPED_TEST_SUITE_P(DelayedMpi, CollectivesConformance, DelayedMpi);
INSTANTIATE_TYPED_TEST_SUITE_P(DelayedMpi, CommunicatorConformance, DelayedMpi);
INSTANTIATE_TYPED_TEST_SUITE_P(DelayedMpi, CourierConformance, DelayedMpi);

TEST(MpiTest, RanksOfOneMachineShareAHost) {
  const auto comm = runtime->world();
  EXPECT_EQ(comm->hosts(), std::vector<int>(comm->size(), 0));
  EXPECT_EQ(comm->local_size(), comm->size());
  EXPECT_TRUE(launched_by_mpi());
  EXPECT_TRUE(built_with_mpi());
}

TEST(MpiTest, CommunicatorsDoNotHearEachOther) {
  const auto first = runtime->world();
  const auto second = runtime->world();
  if (first->size() == 1) return;
  const int next = (first->rank() + 1) % first->size();
  const int previous = (first->rank() - 1 + first->size()) % first->size();
  const auto exchange = [&](Communicator& comm, const int& out, int& in) {
    return std::array{comm.receive(previous, Tag::blob, std::as_writable_bytes(std::span(&in, 1))),
                      comm.send(next, Tag::blob, std::as_bytes(std::span(&out, 1)))};
  };
  const int one = 1;
  const int two = 2;
  int from_first = 0;
  int from_second = 0;
  auto second_requests = exchange(*second, two, from_second);
  auto first_requests = exchange(*first, one, from_first);
  first->wait(first_requests, {.collective = "exchange", .stage = 1});
  second->wait(second_requests, {.collective = "exchange", .stage = 1});
  EXPECT_EQ(from_first, 1);
  EXPECT_EQ(from_second, 2);
}

/// Checks that ranks may wait for a job and only then make a communicator. A queue that stopped meanwhile would make
/// them wait for ever.
TEST(MpiTest, AQueueGoesOnWhileItsRankMakesACommunicator) {
  const auto comm = runtime->world();
  BackgroundQueue queue(comm->duplicate(), "queue");
  const Ticket job = queue.submit([rank = comm->rank()](Communicator& own) {
    if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    barrier(own);
  });
  if (comm->rank() != 0) job.wait();
  const auto made = comm->duplicate();
  barrier(*made);
  job.wait();
}

// Makes thousands of communicators, because MPICH has only 2048 at a time.
TEST(MpiTest, ThousandsOfCommunicatorsComeAndGo) {
  const auto comm = runtime->world();
  for (int i = 0; i < 2500; ++i) {
    auto one = comm->duplicate();
    auto other = comm->duplicate();
    if (i % 100 == 0) barrier(*other);
    if ((i + comm->rank()) % 2) one.reset();  // ranks release them in any order
    other.reset();
  }
}

}  // namespace
}  // namespace spillway::ddl::testing

int main(int argc, char** argv) {
  namespace ddl = spillway::ddl;
  ::testing::InitGoogleTest(&argc, argv);
  ddl::MpiRuntime mpi;
  ddl::testing::runtime = &mpi;
  const auto comm = mpi.world();
  if (comm->rank() != 0) {
    auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new ddl::testing::FailurePrinter(comm->rank()));
  }
  // A communicator that a program keeps in a static ends after MPI, with a message under way.
  static std::byte never_comes;
  static const auto outliving = mpi.world();
  (void)outliving->receive(ddl::kAnyRank, ddl::Tag::blob, {&never_comes, 1});
  const int failed = RUN_ALL_TESTS();
  ddl::barrier(*comm);
  return failed;
}
