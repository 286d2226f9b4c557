// Tests of the notices that ranks send beside their messages: that a rank died, and that a rank is busy.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "ddl/comm/busy.h"
#include "tests/ddl/faults.h"
#include "tests/support/ddl/forwarding_transport.h"
#include "tests/support/ddl/shapes.h"

namespace spillway::ddl {
namespace {

using namespace std::chrono_literals;
using testing::by_host;
using testing::dealt;

/// A transport that counts the notices of all ranks.
class NoticeCounter final : public testing::ForwardingTransport {
 public:
  NoticeCounter(std::unique_ptr<Transport> inner, std::atomic<int>& sent, std::atomic<int>& awaited)
      : ForwardingTransport(std::move(inner)), sent_(sent), awaited_(awaited) {}
  Request send(int peer, Tag tag, std::span<const std::byte> bytes) override {
    sent_ += tag == Tag::notice;
    return inner().send(peer, tag, bytes);
  }
  Request receive(int peer, Tag tag, std::span<std::byte> bytes) override {
    awaited_ += tag == Tag::notice;
    return inner().receive(peer, tag, bytes);
  }
  std::unique_ptr<Transport> duplicate() override {
    return std::make_unique<NoticeCounter>(inner().duplicate(), sent_, awaited_);
  }

 private:
  std::atomic<int>&sent_, &awaited_;
};

/// Checks that a rank awaits one notice at a time, from any rank, and passes a death on to log2 of the ranks.
TEST(NoticeTest, ADeathIsToldInFewNotices) {
  constexpr int kRanks = 16, kPassedOn = 4;
  std::atomic<int> sent = 0, awaited = 0, failed = 0;
  ThreadWorld world(by_host({kRanks}));
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < kRanks; ++rank)
      ranks.emplace_back([&, rank] {
        Communicator comm(std::make_unique<NoticeCounter>(world.transport(rank), sent, awaited));
        if (rank == 3) return comm.give_up("no room");
        try {
          barrier(comm);
        } catch (const CommError&) {
          ++failed;
        }
      });
  }
  EXPECT_EQ(failed, kRanks - 1);
  EXPECT_LE(sent, (kRanks - 1) + (kRanks - 1) * kPassedOn);
  EXPECT_LE(awaited, kRanks + sent);
}

TEST(NoticeTest, ARankThatSaysItIsBusyIsWaitedForBeyondTheDeadline) {
  for (const auto& hosts : {by_host({2}), dealt({3, 1})}) {
    const auto errors = errors_of(hosts,
                                  [](Communicator& comm) {
                                    if (comm.rank() == 1) {
                                      const Busy busy(&comm);
                                      std::this_thread::sleep_for(1500ms);
                                    }
                                    reduce(comm, 1000);
                                  },
                                  {.deadline = 400ms});
    for (const auto& error : errors) EXPECT_EQ(error, "");
  }
}

TEST(NoticeTest, ATooLongReasonIsCutBetweenTwoCharacters) {
  for (const std::string& begin : {std::string(), std::string("x")}) {
    std::string reason = begin;
    while (reason.size() < 1000) reason += "é";
    const auto errors = errors_of(by_host({2}), [&](Communicator& comm) {
      if (comm.rank() == 1) return comm.give_up(reason);
      barrier(comm);
    });
    std::string kept = begin;
    while (kept.size() + 2 <= 495) kept += "é";
    EXPECT_EQ(errors[0], "[ddl] rank 0: rank 1 gave up: " + kept);
  }
}

TEST(NoticeTest, ALongRefusalIsTheSameOnAllRanks) {
  std::array<std::string, 2> texts;
  const auto errors = errors_of(by_host({2}), [&](Communicator& comm) {
    try {
      throw_on_all_ranks(comm, comm.rank() == 1 ? std::string(100'000, 'x') : "");
    } catch (const BadRequest& refusal) {
      texts[comm.rank()] = refusal.what();
    }
  });
  EXPECT_EQ(texts[0], std::string(65'536, 'x'));
  EXPECT_EQ(texts[1], texts[0]);
  for (const auto& error : errors) EXPECT_EQ(error, "");
}

/// Checks that a busy rank may call collectives, and that ranks that wait for it may call them meanwhile.
TEST(NoticeTest, ABusyRankTakesPartInCollectives) {
  const auto errors = errors_of(by_host({3}),
                                [](Communicator& comm) {
                                  const Busy busy(&comm);
                                  const Busy other(comm.rank() == 2 ? &comm : nullptr);
                                  for (int i = 0; i < 5; ++i) {
                                    if (comm.rank() == i % 3) std::this_thread::sleep_for(150ms);
                                    reduce(comm, 1000);
                                  }
                                },
                                {.deadline = 300ms});
  for (const auto& error : errors) EXPECT_EQ(error, "");
}

TEST(NoticeTest, WhoIsBusyForLongerThanAllowedIsGivenUp) {
  const auto errors = errors_of(by_host({3}),
                                [](Communicator& comm) {
                                  if (comm.rank() == 1) {
                                    const Busy busy(&comm, 300ms);
                                    std::this_thread::sleep_for(1500ms);
                                  }
                                  reduce(comm, 1000);
                                },
                                {.deadline = 300ms});
  for (const int rank : {0, 2}) EXPECT_NE(errors[rank].find("no answer from rank"), std::string::npos) << errors[rank];
}

}  // namespace
}  // namespace spillway::ddl
