#include "ddl/courier/courier.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "ddl/comm/busy.h"
#include "tests/ddl/faults.h"
#include "tests/support/ddl/courier_conformance.h"
#include "tests/support/ddl/forwarding_transport.h"
#include "tests/support/refusal.h"

namespace spillway::ddl {
namespace {

using namespace std::chrono_literals;
using spillway::testing::expect_refusal;
using testing::OwnCourier;

/// The two ends of one line from rank 0 to rank 1.
std::vector<Channel> line(const Communicator& comm, int slots = 1, int64_t bytes = 1000) {
  return {{"activations from stage 0 to stage 1", 0, 1 - comm.rank(), comm.rank() == 0, bytes, slots}};
}

TEST(CourierTest, ASenderBlocksWhileTheSlotsOfBothEndsAreFull) {
  ThreadWorld world({0, 1});
  std::atomic<int> sent = 0;
  run_ranks(world, [&](Communicator& comm) {
    OwnCourier courier(comm.duplicate(), line(comm, 2));
    if (comm.rank() == 0) {
      for (int k = 0; k < 6; ++k) {
        courier.send(0, {0, k, 0}, k);
        ++sent;
      }
      EXPECT_GT(courier->totals(0).waited, 10ms);
      return;
    }
    std::this_thread::sleep_for(50ms);
    EXPECT_EQ(sent, 4);
    for (int k = 0; k < 6; ++k) EXPECT_TRUE(courier.receive(0, {0, k, 0}, k));
  });
}

/// The courier's wire of a rank, and whether it went idle before it started a message that was there to send.
struct WatchedWire {
  std::atomic<bool> sent = false;  ///< the caller has sent the message
  std::atomic<bool> started = false;
  std::atomic<bool> idled_before_start = false;
};

/// A transport whose tests of the courier's messages end after the caller has sent one and waits for another.
class SlowTests final : public testing::ForwardingTransport {
 public:
  SlowTests(std::unique_ptr<Transport> inner, WatchedWire& watched)
      : ForwardingTransport(std::move(inner)), watched_(watched) {}
  Request receive(int peer, Tag tag, std::span<std::byte> bytes) override {
    is_couriers_ = is_couriers_ || tag >= Tag::channel;
    return inner().receive(peer, tag, bytes);
  }
  Request send(int peer, Tag tag, std::span<const std::byte> bytes) override {
    if (tag >= Tag::channel) watched_.started = true;
    return inner().send(peer, tag, bytes);
  }
  bool test(Request& request) override {
    if (is_couriers_ && !watched_.sent) {
      while (!watched_.sent) std::this_thread::yield();
      std::this_thread::sleep_for(20ms);
    }
    return inner().test(request);
  }
  void idle(std::chrono::steady_clock::time_point until) override {
    if (is_couriers_ && !watched_.started) watched_.idled_before_start = true;
    inner().idle(until);
  }
  std::unique_ptr<Transport> duplicate() override { return std::make_unique<SlowTests>(inner().duplicate(), watched_); }

 private:
  WatchedWire& watched_;
  bool is_couriers_ = false;
};

TEST(CourierTest, AMessageThatIsSentWhileOthersAreTestedStartsAtOnce) {
  ThreadWorld world({0, 0});
  WatchedWire watched;
  const auto both_lines = [](const Communicator& comm) {
    std::vector<Channel> channels;
    for (int from : {0, 1}) channels.push_back({"on", from, 1 - comm.rank(), from == comm.rank(), 1000, 1});
    return channels;
  };
  std::thread other([&] {
    const auto comm = world.communicator(1);
    OwnCourier courier(comm->duplicate(), both_lines(*comm));
    EXPECT_TRUE(courier.receive(0, {}, 0));
    courier.send(1, {}, 1);
  });
  {
    Communicator comm(std::make_unique<SlowTests>(world.transport(0), watched));
    OwnCourier courier(comm.duplicate(), both_lines(comm));
    std::this_thread::sleep_for(20ms);  // the thread tests the receive
    courier.send(0, {}, 0);
    watched.sent = true;
    EXPECT_TRUE(courier.receive(1, {}, 1));
  }
  other.join();
  EXPECT_FALSE(watched.idled_before_start);
}

TEST(CourierTest, TheRankThatOwesAMessageIsNamedWithChannelAndMicroBatch) {
  const auto errors = errors_of({0, 0},
                                [](Communicator& comm) {
                                  OwnCourier courier(comm.duplicate(), line(comm));
                                  if (comm.rank() == 0) {
                                    std::this_thread::sleep_for(1s);
                                    courier.send(0, {}, 0);
                                  } else {
                                    courier.receive(0, {0, 3, 0}, 0);
                                  }
                                },
                                {.deadline = 200ms});
  // Rank 0 computes, but its courier answers.
  EXPECT_EQ(errors[1],
            "[ddl] rank 1: rank 0 is alive but did not answer within 0.2 s (level 1 of 1, activations from stage 0 to "
            "stage 1, micro-batch 3): the ranks do not make the same calls");
  EXPECT_NE(errors[0].find("rank 1 gave up"), std::string::npos) << errors[0];
}

TEST(CourierTest, TheDeadlineCountsOnlyWhileSomebodyWaits) {
  const auto errors = errors_of({0, 0},
                                [](Communicator& comm) {
                                  OwnCourier courier(comm.duplicate(), line(comm));
                                  std::this_thread::sleep_for(500ms);  // both compute
                                  if (comm.rank() == 0)
                                    courier.send(0, {}, 0);
                                  else
                                    EXPECT_TRUE(courier.receive(0, {}, 0));
                                },
                                {.deadline = 100ms});
  EXPECT_EQ(errors, (std::vector<std::string>{"", ""}));
}

TEST(CourierTest, AMessageOfAnotherMicroBatchEndsBothRanks) {
  const auto errors = errors_of({0, 0}, [](Communicator& comm) {
    OwnCourier courier(comm.duplicate(), line(comm));
    if (comm.rank() == 0) {
      for (int k = 0; k < 10; ++k) courier.send(0, {7, 2, 0}, 0);
    } else {
      courier.receive(0, {7, 1, 0}, 0);
    }
  });
  const std::string what =
      "rank 0 sent micro-batch 2 of step 7 where micro-batch 1 of step 7 is due (activations from stage 0 to stage 1)";
  EXPECT_EQ(errors[1], "[courier] rank 1: " + what);
  EXPECT_NE(errors[0].find(what), std::string::npos) << errors[0];
}

TEST(CourierTest, ARankThatAnErrorEndsDoesNotLeaveTheOtherWaiting) {
  const auto errors = errors_of({0, 0}, [](Communicator& comm) {
    if (comm.rank() == 1) {
      OwnCourier courier(comm.duplicate(), line(comm));
      courier.receive(0, {}, 0);
      return;
    }
    try {
      OwnCourier courier(comm.duplicate(), line(comm));
      throw std::runtime_error("no memory");
    } catch (const std::runtime_error&) {
      barrier(comm);
    }
  });
  EXPECT_NE(errors[1].find("rank 0 gave up: was interrupted with messages under way"), std::string::npos) << errors[1];
}

TEST(CourierTest, NothingIsSentWhenItsWriterThrows) {
  ThreadWorld world({0, 0});
  run_ranks(world, [](Communicator& comm) {
    OwnCourier courier(comm.duplicate(), line(comm));
    if (comm.rank() == 1) {
      EXPECT_TRUE(courier.receive(0, {0, 1, 0}, 4));
      return;
    }
    EXPECT_THROW(courier->send(0, {0, 0, 0}, [](auto) { throw std::runtime_error("no memory"); }), std::runtime_error);
    courier.send(0, {0, 1, 0}, 4);
  });
}

TEST(CourierTest, RefusesChannelsThatCannotBe) {
  ThreadWorld world({0, 0});
  run_ranks(world, [](Communicator& comm) {
    const auto own = comm.duplicate();
    const int peer = 1 - comm.rank();
    const auto make = [&](const std::vector<Channel>& channels) { OwnCourier(own, channels); };
    expect_refusal(
        [&] {
          make({{"skip", -1, peer, true, 1, 1}});
        },
        {"[courier] skip: number is -1; allowed is 0 to 16383"});
    expect_refusal([&] { make({{"skip", 0, comm.rank(), true, 1, 1}}); }, {"another rank of 2"});
    expect_refusal(
        [&] {
          make({{"skip", 0, peer, true, -1, 1}});
        },
        {"[courier] skip: bytes is -1; allowed is 0 or more"});
    expect_refusal(
        [&] {
          make({{"skip", 0, peer, true, 1, 0}});
        },
        {"[courier] skip: slots is 0; allowed is 1 or more"});
    expect_refusal(
        [&] {
          make({{"skip", 0, peer, true, 1, 1}, {"other", 0, peer, true, 1, 1}});
        },
        {"[courier] other: number is 0; allowed is one that no other channel between these ranks has"});
    std::byte memory[10];
    expect_refusal(
        [&] {
          Courier(own, {{"skip", 0, peer, true, 1, 1}}, memory);
        },
        {"[courier] the memory has 10 bytes; the channels need 128"});
  });
}

}  // namespace
}  // namespace spillway::ddl
