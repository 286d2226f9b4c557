// Tests that every fault between ranks ends in CommError on every rank, and in no hang. Ranks are threads here.
// fault_program.cpp plays the same faults between processes.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <mutex>
#include <new>
#include <thread>

#include "core/error.h"
#include "core/hash.h"
#include "ddl/allreduce/allreduce.h"
#include "ddl/comm/agreement.h"
#include "ddl/comm/background_queue.h"
#include "ddl/comm/collectives.h"
#include "ddl/comm/thread_world.h"
#include "tests/ddl/faults.h"
#include "tests/support/ddl/shapes.h"
#include "tests/support/refusal.h"

namespace spillway::ddl {
namespace {

using namespace std::chrono_literals;
using testing::by_host;
using testing::dealt;

TEST(FaultTest, AMismatchedCountEndsInCommErrorOnEveryRank) {
  for (const auto& hosts : {by_host({2}), by_host({5}), by_host({4, 2}), dealt({3, 1})}) {
    const auto errors = errors_of(hosts, [](Communicator& comm) { reduce(comm, comm.rank() == 1 ? 1001 : 1000); });
    expect_all_contain(errors, "the ranks disagree: rank ");
    expect_all_contain(errors, "rank 1 calls allreduce (sum) of 1001");
  }
}

TEST(FaultTest, AMismatchedReductionEndsInCommErrorOnEveryRank) {
  const auto errors = errors_of(by_host({4, 2}), [](Communicator& comm) {
    reduce(comm, 1000, comm.rank() == 5 ? Reduction::average : Reduction::sum);
  });
  expect_all_contain(errors, "rank 5 calls allreduce (average) of 1000");
}

TEST(FaultTest, AMismatchedOperationEndsInCommErrorOnEveryRank) {
  const auto errors =
      errors_of(by_host({3}), [](Communicator& comm) { comm.rank() == 2 ? barrier(comm) : reduce(comm, 1000); });
  expect_all_contain(errors, "rank 2 calls barrier");
}

TEST(FaultTest, DifferentDeclarationsOfHostsEndInCommError) {
  ThreadWorld world({0, 0, 0});
  std::atomic<int> failed = 0;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      auto comm = world.communicator(rank, {.levels = {{0, rank == 0 ? 0 : 1, 1}}});
      try {
        reduce(*comm, 10);
      } catch (const CommError&) {
        ++failed;
      }
    });
  }
  for (auto& rank : ranks) rank.join();
  EXPECT_EQ(failed, 3);
}

TEST(FaultTest, ASilentRankIsNamedByEveryOtherRank) {
  for (const auto& hosts : {by_host({2}), by_host({5}), by_host({4, 2}), dealt({3, 3})}) {
    auto errors = errors_of(hosts,
                            [](Communicator& comm) {
                              if (comm.rank() != 1) reduce(comm, 1000);
                            },
                            {.deadline = 300ms});
    EXPECT_EQ(errors[1], "");
    errors.erase(errors.begin() + 1);
    expect_all_contain(errors, "no answer from rank 1");
  }
}

TEST(FaultTest, TheMessageNamesRankPeerDeadlineLevelAndStage) {
  const auto errors = errors_of(by_host({2}),
                                [](Communicator& comm) {
                                  if (comm.rank() == 1) reduce(comm, 1000);
                                },
                                {.deadline = 300ms});
  EXPECT_EQ(errors[1], "[ddl] rank 1: no answer from rank 0 within 0.3 s (level 1 of 1, agreement, stage 1)");
}

TEST(FaultTest, OutsideTheLevelsTheMessageNamesTheLevelThatJoinsItsRanks) {
  // In a barrier's first stage each rank waits for the rank before it. Ranks 0 and 3 come later, so that rank 2 gives
  // up first.
  const auto errors = errors_of({0, 0, 1, 1},
                                [](Communicator& comm) {
                                  if (comm.rank() != 2) std::this_thread::sleep_for(100ms);
                                  if (comm.rank() != 1) barrier(comm);
                                },
                                {.deadline = 300ms});
  EXPECT_EQ(errors[2], "[ddl] rank 2: no answer from rank 1 within 0.3 s (level 2 of 2, agreement, stage 1)");
}

/// Checks the error when a rank agrees to the call and then falls silent: it sends the other ranks everything but its
/// data.
TEST(FaultTest, ARankThatDiesWithinAReductionIsNamedWithItsLevel) {
  const auto errors = errors_of(by_host({2}),
                                [](Communicator& comm) {
                                  if (comm.rank() == 1) return reduce(comm, 1000);
                                  uint64_t signature = hash_in(0, Plan(comm.levels()).hash());
                                  signature = hash_in(signature, AllreduceOptions{}.chunk_bytes);
                                  signature = hash_in(signature, static_cast<uint64_t>(Element::float32));
                                  signature = hash_in(signature, static_cast<uint64_t>(Reduction::sum));
                                  const Call call{Operation::allreduce_sum, -1, 1000, signature};
                                  agree(comm, call.with_detail({"float32 by direct"}));
                                },
                                {.deadline = 300ms});
  EXPECT_EQ(errors[1], "[ddl] rank 1: no answer from rank 0 within 0.3 s (level 1 of 1, reduce-scatter, stage 1)");
}

TEST(FaultTest, RanksInDifferentCallsAreToldSo) {
  const auto errors = errors_of(
      by_host({2}),
      [](Communicator& comm) {
        std::byte byte{};
        Request request = comm.receive(1 - comm.rank(), comm.rank() == 0 ? Tag::blob : Tag::reduce, {&byte, 1});
        comm.wait({&request, 1}, {.collective = "exchange", .stage = 1});
      },
      {.deadline = 300ms});
  EXPECT_TRUE(errors[0].find("do not make the same calls") != std::string::npos ||
              errors[1].find("do not make the same calls") != std::string::npos)
      << errors[0] << "\n"
      << errors[1];
  EXPECT_NE(errors[0], "");
  EXPECT_NE(errors[1], "");
}

TEST(FaultTest, ALateRankHearsThatTheOthersGaveUp) {
  const auto errors = errors_of(by_host({3}),
                                [](Communicator& comm) {
                                  if (comm.rank() == 2) std::this_thread::sleep_for(1500ms);
                                  reduce(comm, 1000);
                                },
                                {.deadline = 300ms});
  EXPECT_NE(errors[2].find("gave up: no answer from rank"), std::string::npos) << errors[2];
}

/// Checks that the other ranks, which would wait 60 s for an answer, get the reason instead.
TEST(FaultTest, ARankThatGivesUpTellsTheOthersWhy) {
  const auto errors = errors_of(by_host({2, 2}), [](Communicator& comm) {
    if (comm.rank() == 1) comm.fail("the disk is full");
    reduce(comm, 1000);
  });
  EXPECT_EQ(errors[1], "[ddl] rank 1: the disk is full");
  for (const int rank : {0, 2, 3}) {
    EXPECT_EQ(errors[rank], spillway::str("[ddl] rank ", rank, ": rank 1 gave up: the disk is full"));
  }
}

std::string error_of(const Ticket& ticket) {
  try {
    ticket.wait();
  } catch (const CommError& error) {
    return error.what();
  }
  return "";
}

/// Checks that the queue ends on every rank at once, because otherwise the other ranks would wait 60 s for an answer.
TEST(FaultTest, WhoGivesUpAQueueEndsItEverywhere) {
  const auto errors = errors_of(by_host({3}), [](Communicator& comm) {
    std::vector<float> data(100'000, 1.0f);
    BackgroundQueue queue(comm.duplicate(), "queue");
    const auto start = [&] {
      return queue.submit([&data](Communicator& own) { Allreduce(own).reduce(data, Reduction::sum); });
    };
    start().wait();
    if (comm.rank() == 0) std::this_thread::sleep_for(100ms);
    const Ticket second = start();
    if (comm.rank() == 1) return;  // its queue ends, too
    const Ticket third = start();
    EXPECT_NE(error_of(second).find("rank 1 gave up: was interrupted"), std::string::npos) << error_of(second);
    EXPECT_NE(error_of(third).find("this communicator is dead since: rank 1"), std::string::npos) << error_of(third);
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
}

/// Checks that an error in a job, or in the ticket that it waits for, ends the queue everywhere. Otherwise the other
/// ranks would wait 60 s for an answer.
TEST(FaultTest, WhatAJobOrItsWaitThrowsEndsTheQueueEverywhere) {
  const auto full = std::make_exception_ptr(std::runtime_error("the disk is full"));
  TicketSource failed;
  failed.complete(full);
  for (const bool in_job : {true, false}) {
    const auto errors = errors_of(by_host({3}), [&](Communicator& comm) {
      BackgroundQueue queue(comm.duplicate(), "queue");
      const bool fails = comm.rank() == 1;
      const auto job = [&](Communicator& own) {
        if (fails && in_job) std::rethrow_exception(full);
        barrier(own);
      };
      const Ticket first = queue.submit(job, fails && !in_job ? failed.ticket() : Ticket());
      const std::string reason = fails ? "the disk is full" : "rank 1 gave up: the disk is full";
      EXPECT_EQ(error_of(first), spillway::str("[ddl] rank ", comm.rank(), ": ", reason));
      EXPECT_NE(error_of(queue.submit(barrier)).find("dead since: " + reason), std::string::npos);
    });
    for (const auto& error : errors) EXPECT_EQ(error, "");
  }
}

/// Checks that ranks that wait in a queue get the reason of a rank that gives up outside the queue.
TEST(FaultTest, WhoGivesUpIsHeardInItsOwnWordsWhereverTheOthersWait) {
  const auto errors = errors_of(by_host({2, 1}), [](Communicator& comm) {
    BackgroundQueue queue(comm.duplicate(), "queue");
    if (comm.rank() == 1) {
      std::thread([&] { comm.give_up("the budget is too small", 3); }).join();
      comm.give_up("is being unwound", 1);
      EXPECT_TRUE(comm.dead());
      return;
    }
    const Ticket job = queue.submit(barrier);
    try {
      job.wait();
      ADD_FAILURE() << "a job ended without rank 1";
    } catch (const CommError& error) {
      EXPECT_EQ(std::string(error.what()),
                spillway::str("[ddl] rank ", comm.rank(), ": rank 1 gave up: the budget is too small"));
      EXPECT_EQ(error.origin(), 1);
      EXPECT_EQ(error.exit_code(), 3);
    }
    barrier(comm);  // dead, too
  });
  EXPECT_EQ(errors[1], "");
  for (const int rank : {0, 2})
    EXPECT_EQ(errors[rank],
              spillway::str("[ddl] rank ", rank,
                            ": this communicator is dead since: rank 1 gave up: the budget is too small"));
}

/// Checks that each message has a deadline of its own.
TEST(FaultTest, ARoundOfLateMessagesMayLastLongerThanTheDeadline) {
  const auto errors = errors_of(by_host({4}),
                                [](Communicator& comm) {
                                  std::array<std::byte, 4> bytes{};
                                  const auto byte = [&](int rank) { return std::span(bytes).subspan(rank, 1); };
                                  std::vector<Request> requests;
                                  if (comm.rank() == 0) {
                                    for (int peer = 1; peer < 4; ++peer)
                                      requests.push_back(comm.receive(peer, Tag::blob, byte(peer)));
                                  } else {
                                    std::this_thread::sleep_for(comm.rank() * 400ms);
                                    requests.push_back(comm.send(0, Tag::blob, byte(0)));
                                  }
                                  comm.wait(requests, {.collective = "exchange", .stage = 1});
                                },
                                {.deadline = 700ms});
  for (const auto& error : errors) EXPECT_EQ(error, "");
}

TEST(FaultTest, ARankThatDoesNotDuplicateIsNamedAfterTheDeadline) {
  const auto errors = errors_of(by_host({3}),
                                [](Communicator& comm) {
                                  if (comm.rank() != 1) comm.duplicate();
                                },
                                {.deadline = 300ms});
  for (const int rank : {0, 2})
    EXPECT_NE(errors[rank].find("no answer from rank 1"), std::string::npos) << errors[rank];
}

TEST(FaultTest, RanksOfWhichOneDoesNotDuplicateDisagree) {
  const auto errors =
      errors_of(by_host({3}), [](Communicator& comm) { comm.rank() == 1 ? barrier(comm) : (void)comm.duplicate(); });
  expect_all_contain(errors, "rank 1 calls barrier");
}

/// Checks that a rank is named by its number in the world, wherever it is in a group.
TEST(FaultTest, AMemberThatDoesNotComeIsNamedByItsNumberInTheWorld) {
  for (const bool makes_group : {false, true}) {
    const auto errors = errors_of(by_host({3}),
                                  [&](Communicator& comm) {
                                    if (comm.rank() == 0 || (comm.rank() == 2 && !makes_group)) return;
                                    const auto group = comm.group({1, 2});
                                    if (comm.rank() == 1) barrier(*group);
                                  },
                                  {.deadline = 300ms});
    EXPECT_NE(errors[1].find("[ddl] rank 1: no answer from rank 2"), std::string::npos) << errors[1];
  }
}

TEST(FaultTest, MembersOfOtherListsDisagree) {
  const auto errors = errors_of(by_host({3}), [](Communicator& comm) {
    (void)comm.group(comm.rank() == 2 ? std::vector<int>{1, 2} : std::vector<int>{0, 1, 2});
  });
  expect_all_contain(errors, "the ranks disagree: rank");
}

TEST(FaultTest, WhoGivesUpInAGroupEndsAllGroups) {
  const auto errors = errors_of(by_host({2, 2}), [](Communicator& comm) {
    const int first = comm.rank() / 2 * 2;
    const auto group = comm.group({first, first + 1});
    if (comm.rank() == 3) group->fail("its budget is too small");
    if (comm.rank() == 1) return;
    barrier(*group);  // rank 0 waits for rank 1, and rank 2 for rank 3
  });
  EXPECT_EQ(errors[3], "[ddl] rank 3: its budget is too small");
  for (const int rank : {0, 2})
    EXPECT_NE(errors[rank].find("rank 3 gave up: its budget is too small"), std::string::npos) << errors[rank];
}

/// Checks that leaving an agreement ends the communicator. Otherwise the other ranks would wait 60 s, and a message
/// might be written to freed memory.
TEST(FaultTest, WhoLeavesAnAgreementEndsTheCommunicator) {
  const auto errors = errors_of(by_host({3}), [](Communicator& comm) {
    if (comm.rank() != 1) {
      barrier(comm);  // rank 1's first vote may be enough for it
      return barrier(comm);
    }
    try {
      Agreement agreement(comm, {Operation::barrier});
      throw std::bad_alloc();
    } catch (const std::bad_alloc&) {
      EXPECT_TRUE(comm.dead());
    }
  });
  EXPECT_EQ(errors[1], "");
  for (const int rank : {0, 2})
    EXPECT_NE(errors[rank].find("rank 1 gave up: was interrupted in the middle of a collective"), std::string::npos)
        << errors[rank];
}

TEST(FaultTest, WhatOneRankRefusesIsRefusedByAll) {
  const auto errors = errors_of(by_host({3}), [](Communicator& comm) {
    const auto check = [&] {
      if (comm.rank() == 1) throw std::out_of_range("the parameter is on no device\nand more");
    };
    if (comm.rank() == 1)
      EXPECT_THROW(check_together(comm, check), std::out_of_range);
    else
      EXPECT_EQ(spillway::testing::refusal([&] { check_together(comm, check); }),
                "rank 1: the parameter is on no device");
    barrier(comm);
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
}

TEST(FaultTest, ADeadCommunicatorKeepsItsReason) {
  ThreadWorld world({0});
  auto comm = world.communicator(0);
  EXPECT_THROW(comm->fail("the disk is full"), CommError);
  try {
    barrier(*comm);
    Allreduce(*comm).reduce(std::span<float>(), Reduction::sum);
    (void)comm->send(0, Tag::blob, {});
    FAIL() << "a dead communicator sent";
  } catch (const CommError& error) {
    EXPECT_STREQ(error.what(), "[ddl] rank 0: this communicator is dead since: the disk is full");
  }
}

TEST(FaultTest, OptionsNameTheFieldAndTheAllowedRange) {
  ThreadWorld world({0, 0});
  EXPECT_THROW(world.communicator(0, {.deadline = 0ms}), BadRequest);
  try {
    world.communicator(0, {.levels = {{0, 0, 1}}});
    FAIL() << "3 declared ranks in a world of 2";
  } catch (const BadRequest& error) {
    EXPECT_STREQ(error.what(), "[ddl] levels are declared for 3 ranks, but 2 are running");
  }
  EXPECT_THROW(AllreduceOptions{.chunk_bytes = 0}.validate(), BadRequest);
}

}  // namespace
}  // namespace spillway::ddl
