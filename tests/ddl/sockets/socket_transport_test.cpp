// The conformance suite over sockets, and what sockets alone can do: ends of processes, full buffers.
#include "ddl/sockets/socket_transport.h"

#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <future>
#include <numeric>
#include <thread>

#include "core/clock.h"
#include "core/error.h"
#include "ddl/comm/collectives.h"
#include "ddl/comm/communicator.h"
#include "tests/ddl/sockets/file_texts.h"
#include "tests/support/ddl/conformance.h"
#include "tests/support/ddl/delayed_transport.h"
#include "tests/support/ddl/shapes.h"
#include "tests/support/ddl/socket_world.h"

namespace spillway::ddl::testing {
namespace {

struct Sockets {
  static std::vector<std::vector<int>> shapes() {
    return both_orders({{1}, {2}, {1, 1}, {5}, {4, 4}, {2, 2, 2}, {4, 2}, {3, 1}, {1, 2, 3}});
  }
  static void run(const std::vector<int>& hosts, const std::function<void(Communicator&)>& body) {
    run_over_sockets(hosts, [&](std::unique_ptr<Transport> wire) {
      Communicator comm(std::move(wire));
      body(comm);
    });
  }
};

struct DelayedSockets {
  static std::vector<std::vector<int>> shapes() { return both_orders({{2}, {3, 1}}); }
  static void run(const std::vector<int>& hosts, const std::function<void(Communicator&)>& body) {
    run_over_sockets(hosts, [&](std::unique_ptr<Transport> wire) {
      const int rank = wire->rank();
      Communicator comm(std::make_unique<DelayedTransport>(std::move(wire), 7 * rank + 1));
      body(comm);
    });
  }
};

/// Waits for requests as a Communicator does.
void finish(Transport& wire, std::vector<Request> requests) {
  const auto end = Clock::now() + std::chrono::seconds(20);
  while (true) {
    bool all = true;
    for (Request& request : requests) {
      if (wire.test(request)) continue;
      all = false;
      if (wire.will_never_finish(request)) throw std::runtime_error(str("rank ", request.peer, " has ended"));
    }
    if (all) return;
    if (Clock::now() > end) throw std::runtime_error("a message did not come");
    wire.idle(end);
  }
}

std::vector<std::byte> pattern(size_t size, int seed) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 31 + i / 251 + static_cast<size_t>(seed));
  return bytes;
}

Tag tag(int number) {
  return static_cast<Tag>(100 + number);
}

}  // namespace

INSTANTIATE_TYPED_TEST_SUITE_P(Sockets, AllreduceConformance, Sockets);
INSTANTIATE_TYPED_TEST_SUITE_P(Sockets, CollectivesConformance, Sockets);
INSTANTIATE_TYPED_TEST_SUITE_P(Sockets, CommunicatorConformance, Sockets);
INSTANTIATE_TYPED_TEST_SUITE_P(Sockets, CourierConformance, Sockets);
INSTANTIATE_TYPED_TEST_SUITE_P(DelayedSockets, CollectivesConformance, DelayedSockets);
INSTANTIATE_TYPED_TEST_SUITE_P(DelayedSockets, CommunicatorConformance, DelayedSockets);
INSTANTIATE_TYPED_TEST_SUITE_P(DelayedSockets, CourierConformance, DelayedSockets);

TEST(SocketTransportTest, LargeMessagesPassEachOther) {
  for (const std::vector<int>& hosts : {std::vector<int>{0, 0}, {0, 1}})
    run_over_sockets(hosts, [](std::unique_ptr<Transport> wire) {
      const int peer = 1 - wire->rank();
      const size_t size = (size_t{40} << 20) + 13;  // more than the system keeps on its way
      const auto sent = pattern(size, wire->rank());
      std::vector<std::byte> got(size);
      finish(*wire, {wire->send(peer, tag(1), sent), wire->receive(peer, tag(1), got)});
      EXPECT_EQ(got, pattern(size, peer));
    });
}

TEST(SocketTransportTest, TagsMayBeReceivedInAnyOrder) {
  run_over_sockets({0, 0}, [](std::unique_ptr<Transport> wire) {
    constexpr int kTags = 5, kEach = 3;
    if (wire->rank() == 0) {
      std::vector<std::vector<std::byte>> messages;
      std::vector<Request> requests;
      for (int round = 0; round < kEach; ++round)
        for (int t = 0; t < kTags; ++t) {
          messages.push_back(pattern(10'000 * t + round, t));
          requests.push_back(wire->send(1, tag(t), messages.back()));
        }
      finish(*wire, requests);
      return;
    }
    for (int t = kTags; t-- > 0;)
      for (int round = 0; round < kEach; ++round) {
        std::vector<std::byte> got(10'000 * t + round);
        finish(*wire, {wire->receive(0, tag(t), got)});
        EXPECT_EQ(got, pattern(got.size(), t)) << t << " " << round;
      }
  });
}

TEST(SocketTransportTest, AReceivePostedWhileItsMessageComesGetsThatMessage) {
  std::promise<void> half_sent, posted;
  run_over_sockets({0, 0}, [&](std::unique_ptr<Transport> wire) {
    constexpr size_t kSize = size_t{8} << 20;  // more than the system keeps on its way
    const auto first = pattern(kSize, 1), second = pattern(kSize, 2), other = pattern(10, 3);
    if (wire->rank() == 0) {
      const Request request = wire->send(1, tag(1), first);
      half_sent.set_value();
      posted.get_future().wait();
      return finish(*wire, {request, wire->send(1, tag(1), second), wire->send(1, tag(2), other)});
    }
    half_sent.get_future().wait();
    std::vector<std::byte> got_first(kSize), got_second(kSize), got_other(other.size());
    Request last = wire->receive(0, tag(2), got_other);
    for (int i = 0; i < 100; ++i) {  // the first message comes in the way of this one
      EXPECT_FALSE(wire->test(last));
      wire->idle(Clock::now() + std::chrono::milliseconds(1));
    }
    std::vector<Request> requests{last, wire->receive(0, tag(1), got_first), wire->receive(0, tag(1), got_second)};
    posted.set_value();
    finish(*wire, requests);
    EXPECT_EQ(got_first, first);
    EXPECT_EQ(got_second, second);
    EXPECT_EQ(got_other, other);
  });
}

TEST(SocketTransportTest, AWaitSleepsThoughAnotherRanksMessageIsThere) {
  run_over_sockets({0, 0, 1}, [](std::unique_ptr<Transport> wire) {
    const auto message = pattern(100'000, wire->rank());
    if (wire->rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    if (wire->rank() > 0) return finish(*wire, {wire->send(0, tag(1), message)});
    std::vector<std::byte> late(message.size()), early(message.size());
    Request first = wire->receive(1, tag(1), late), second = wire->receive(2, tag(1), early);
    int waits = 0;
    const auto start = Clock::now(), end = start + std::chrono::seconds(20);
    for (; !wire->test(first) && Clock::now() < end; ++waits) wire->idle(end);
    // A wait sleeps for a millisecond, but the first few; one that does not sleep takes microseconds.
    EXPECT_LT(waits, 100 + 2 * (Clock::now() - start) / std::chrono::milliseconds(1));
    EXPECT_TRUE(wire->test(second)) << "it came long before";
    EXPECT_EQ(late, pattern(late.size(), 1));
    EXPECT_EQ(early, pattern(early.size(), 2));
  });
}

TEST(SocketTransportTest, AReceiveOfAnotherSizeIsAnErrorAndTheNextMessageIsWhole) {
  run_over_sockets({0, 1}, [](std::unique_ptr<Transport> wire) {
    const auto first = pattern(5000, 1), second = pattern(700, 2);
    if (wire->rank() == 0) return finish(*wire, {wire->send(1, tag(1), first), wire->send(1, tag(1), second)});
    std::vector<std::byte> small(4999), right(700);
    try {
      finish(*wire, {wire->receive(0, tag(1), small)});
      ADD_FAILURE() << "no error";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "5000 bytes came where 4999 were expected");
    }
    finish(*wire, {wire->receive(0, tag(1), right)});
    EXPECT_EQ(right, second);
  });
}

TEST(SocketTransportTest, WhatARankSentBeforeItEndedStillArrives) {
  run_over_sockets({0, 1, 0}, [](std::unique_ptr<Transport> wire) {
    const auto message = pattern(100'000, 3);
    if (wire->rank() == 0) return finish(*wire, {wire->send(1, tag(1), message), wire->send(2, tag(1), message)});
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // rank 0 has ended
    std::vector<std::byte> got(message.size());
    finish(*wire, {wire->receive(0, tag(1), got)});
    EXPECT_EQ(got, message);
    std::vector<std::byte> more(1);
    const auto start = Clock::now();
    try {
      finish(*wire, {wire->receive(0, tag(1), more)});
      ADD_FAILURE() << "no error";
    } catch (const std::runtime_error& error) {
      EXPECT_NE(std::string(error.what()).find("rank 0 has ended"), std::string::npos) << error.what();
    }
    EXPECT_LT(seconds_since(start), 5);
  });
}

// The test of one request reads what came for others too, and the end behind it.
TEST(SocketTransportTest, AMessageThatCameBeforeItsRanksEndIsNotMissedWhileAnotherIsTested) {
  run_over_sockets({0, 0}, [](std::unique_ptr<Transport> wire) {
    const auto message = pattern(100, 3);
    if (wire->rank() == 1) return finish(*wire, {wire->send(0, tag(1), message), wire->send(0, tag(2), message)});
    std::vector<std::byte> first(100), second(100), never(100);
    Request of_first = wire->receive(1, tag(1), first), of_second = wire->receive(1, tag(2), second),
            of_never = wire->receive(1, tag(3), never);
    const auto end = Clock::now() + std::chrono::seconds(20);
    while (!wire->will_never_finish(of_never) && Clock::now() < end) {
      EXPECT_FALSE(wire->test(of_never));
      wire->idle(end);
    }
    EXPECT_TRUE(wire->will_never_finish(of_never));
    for (Request* request : {&of_first, &of_second}) {
      EXPECT_FALSE(wire->will_never_finish(*request));
      EXPECT_TRUE(wire->test(*request));
    }
    EXPECT_EQ(first, message);
    EXPECT_EQ(second, message);
  });
}

TEST(SocketTransportTest, ARankThatEndsWithoutAMessageIsNoticed) {
  run_over_sockets({0, 1, 0}, [](std::unique_ptr<Transport> wire) {
    if (wire->rank() == 0) return;
    std::vector<std::byte> got(1);
    EXPECT_THROW(finish(*wire, {wire->receive(0, tag(1), got)}), std::runtime_error);
  });
}

TEST(SocketTransportTest, DuplicatesAndGroupsAreWiresOfTheirOwn) {
  run_over_sockets({0, 0, 1}, [](std::unique_ptr<Transport> wire) {
    const auto copy = wire->duplicate();
    const auto end = Clock::now() + std::chrono::seconds(20);
    while (!copy->ready()) copy->idle(end);
    const int next = (wire->rank() + 1) % 3, before = (wire->rank() + 2) % 3;
    const auto one = pattern(3000, wire->rank()), other = pattern(3000, 10 + wire->rank());
    std::vector<std::byte> got_one(3000), got_other(3000);
    std::thread thread([&] {
      finish(*copy, {copy->send(next, tag(1), other), copy->receive(before, tag(1), got_other)});
    });
    finish(*wire, {wire->send(next, tag(1), one), wire->receive(before, tag(1), got_one)});
    thread.join();
    EXPECT_EQ(got_one, pattern(3000, before));
    EXPECT_EQ(got_other, pattern(3000, 10 + before));
    if (wire->rank() == 1) return;
    const auto pair = wire->group(std::vector<int>{0, 2});
    while (!pair->ready()) pair->idle(end);
    EXPECT_EQ(pair->rank(), wire->rank() / 2);
    EXPECT_EQ(pair->hosts(), (std::vector<int>{0, 1}));
  });
}

TEST(SocketTransportTest, ARankThatNeverComesEndsTheWait) {
  SharedTexts texts;
  try {
    socket_transport(0, 3, texts, {.deadline = std::chrono::milliseconds(200)});
    ADD_FAILURE() << "no error";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("missing is rank 1, rank 2"), std::string::npos) << error.what();
  }
}

TEST(SocketTransportTest, AnAddressThatThisHostLacksIsNamed) {
  SharedTexts texts;
  try {
    socket_transport(0, 1, texts, {.address = "192.0.2.7"});
    ADD_FAILURE() << "no error";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("192.0.2.7"), std::string::npos);
  }
  EXPECT_THROW(socket_transport(0, 1, texts, {.address = "a word"}), std::runtime_error);
}

TEST(SocketTransportTest, AProcessThatIsKilledEndsTheOthersWaitsAtOnce) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / str("sockets", getpid());
  std::vector<pid_t> children;
  for (int rank = 0; rank < 3; ++rank) {
    const pid_t child = fork();
    if (child > 0) {
      children.push_back(child);
      continue;
    }
    FileTexts files(folder);
    try {
      Communicator comm(socket_transport(rank, 3, files, {.host = "host" + std::to_string(rank / 2)}));
      barrier(comm);
      // A rank that is still in the first barrier when another one gives up in the second would fail there.
      files.set(str("spillway/passed", rank), "yes");
      if (rank == 1) {
        for (const int other : {0, 2}) files.await(str("spillway/passed", other));
        raise(SIGKILL);
      }
      const auto start = Clock::now();
      try {
        barrier(comm);
      } catch (const CommError& error) {
        _exit(std::string(error.what()).find("rank 1") != std::string::npos && seconds_since(start) < 10 ? 0 : 3);
      }
      _exit(4);
    } catch (const std::exception& error) {
      fprintf(stderr, "%s\n", error.what());
      _exit(5);
    }
  }
  for (int rank = 0; rank < 3; ++rank) {
    int status = 0;
    waitpid(children[rank], &status, 0);
    if (rank == 1)
      EXPECT_TRUE(WIFSIGNALED(status));
    else
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "rank " << rank << ": " << WEXITSTATUS(status);
  }
  std::filesystem::remove_all(folder);
}

}  // namespace spillway::ddl::testing
