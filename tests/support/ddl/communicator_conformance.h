/// The suite of communicators and their duplicates, which every backend must pass.
#pragma once
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "core/error.h"
#include "ddl/allreduce/allreduce.h"
#include "ddl/comm/background_queue.h"
#include "ddl/comm/collectives.h"
#include "ddl/comm/transport.h"
#include "tests/support/ddl/contribution.h"
#include "tests/support/ddl/on_every_shape.h"

namespace spillway::ddl::testing {

template <class World>
class CommunicatorConformance : public OnEveryShape<World> {};
TYPED_TEST_SUITE_P(CommunicatorConformance);

TYPED_TEST_P(CommunicatorConformance, JobsGoOnInTheBackgroundInTheirOrderWhileOtherCollectivesRun) {
  this->on_every_shape([](Communicator& comm) {
    const auto own = comm.duplicate();
    Allreduce allreduce(*own, {.chunk_bytes = 4096});
    std::vector<std::vector<float>> vectors;
    std::vector<Ticket> tickets;
    for (const int64_t count : {5003, 0, 1, 70001}) vectors.push_back(contribution(comm.rank(), count));
    std::vector<std::byte> scratch(static_cast<size_t>(allreduce.scratch_bytes(70001, Element::float32)));
    BackgroundQueue queue(own, "queue");
    for (auto& vector : vectors) {
      tickets.push_back(queue.submit([&](Communicator&) {
        allreduce.reduce(in_place(std::span(vector), Element::float32), Reduction::sum, scratch);
      }));
      int64_t number = comm.rank() == 0 ? 7 : 0;
      broadcast(comm, std::as_writable_bytes(std::span(&number, 1)), 0);
      EXPECT_EQ(number, 7);
    }
    Allreduce foreground(comm);
    for (size_t i = 0; i < vectors.size(); ++i) {
      auto expected = contribution(comm.rank(), static_cast<int64_t>(vectors[i].size()));
      foreground.reduce(expected, Reduction::sum);
      tickets[i].wait();
      EXPECT_TRUE(same_bits(vectors[i], expected));
    }
    EXPECT_GT(queue.busy().count(), 0);
  });
}

TYPED_TEST_P(CommunicatorConformance, DuplicatesDoNotHearEachOther) {
  this->on_every_shape([](Communicator& comm) {
    const auto one = comm.duplicate(), other = comm.duplicate();
    EXPECT_EQ(one->levels().hash(), comm.levels().hash());
    EXPECT_EQ(one->rank(), comm.rank());
    const std::array<int64_t, 2> own{100 + comm.rank(), 200 + comm.rank()};
    std::array<std::vector<int64_t>, 2> all;
    const auto post = [&](Communicator& duplicate, size_t i) {
      all[i].assign(static_cast<size_t>(comm.size()), own[i]);
      std::vector<Request> requests;
      for (int peer = 0; peer < comm.size(); ++peer) {
        if (peer == comm.rank()) continue;
        requests.push_back(duplicate.receive(peer, Tag::blob, std::as_writable_bytes(std::span(&all[i][peer], 1))));
        requests.push_back(duplicate.send(peer, Tag::blob, std::as_bytes(std::span(&own[i], 1))));
      }
      return requests;
    };
    // The exchanges begin in one order and end in the other.
    auto first = post(*one, 0), second = post(*other, 1);
    other->wait(second, {.collective = "exchange", .stage = 1});
    one->wait(first, {.collective = "exchange", .stage = 1});
    for (size_t i = 0; i < all.size(); ++i)
      for (int rank = 0; rank < comm.size(); ++rank) EXPECT_EQ(all[i][rank], 100 * static_cast<int64_t>(i + 1) + rank);
  });
}

TYPED_TEST_P(CommunicatorConformance, LocalRanksCountTheRanksOfAHost) {
  this->on_every_shape([](Communicator& comm) {
    std::vector<int> mates;
    for (int rank = 0; rank < comm.size(); ++rank)
      if (comm.hosts()[rank] == comm.hosts()[comm.rank()]) mates.push_back(rank);
    EXPECT_EQ(comm.local_size(), static_cast<int>(mates.size()));
    EXPECT_EQ(mates[comm.local_rank()], comm.rank());
    barrier(comm);
  });
}

TYPED_TEST_P(CommunicatorConformance, GroupsAreWorldsOfTheirOwn) {
  this->on_every_shape([](Communicator& comm) {
    // Even and odd ranks at the same time.
    std::vector<int> members;
    for (int rank = comm.rank() % 2; rank < comm.size(); rank += 2) members.push_back(rank);
    const auto group = comm.group(members);
    ASSERT_EQ(group->size(), static_cast<int>(members.size()));
    for (int rank = 0; rank < group->size(); ++rank) {
      EXPECT_EQ(group->world_rank(rank), members[static_cast<size_t>(rank)]);
      const bool together = comm.hosts()[members[static_cast<size_t>(rank)]] == comm.hosts()[members.front()];
      EXPECT_EQ(group->hosts()[rank] == group->hosts()[0], together);
      for (int other = 0; other < group->size(); ++other)
        EXPECT_EQ(group->levels().joining(rank, other) == 0, rank == other);
    }
    EXPECT_EQ(group->world_rank(group->rank()), comm.rank());
    // Collectives of the group, its duplicate's queue and the whole world go on beside each other.
    const auto own = group->duplicate();
    BackgroundQueue queue(own, "queue");
    std::vector<float> sum(70001, static_cast<float>(comm.rank())), of_queue = sum, of_world(11, 1);
    const Ticket job = queue.submit([&](Communicator& its) { Allreduce(its).reduce(of_queue, Reduction::sum); });
    Allreduce(*group).reduce(sum, Reduction::sum);
    Allreduce(comm).reduce(of_world, Reduction::sum);
    job.wait();
    const int expected = std::accumulate(members.begin(), members.end(), 0);
    EXPECT_EQ(sum, std::vector<float>(70001, static_cast<float>(expected)));
    EXPECT_EQ(of_queue, sum);
    EXPECT_EQ(of_world, std::vector<float>(11, static_cast<float>(comm.size())));
  });
}

TYPED_TEST_P(CommunicatorConformance, ARankMayBeInSeveralGroups) {
  this->on_every_shape([](Communicator& comm) {
    // A chain: each rank has a group with the one before it and one with the one behind it.
    std::shared_ptr<Communicator> before, behind;
    const auto pair = [&](int first) { return comm.group({first, first + 1}); };
    if (comm.rank() > 0) before = pair(comm.rank() - 1);
    if (comm.rank() + 1 < comm.size()) behind = pair(comm.rank());
    int64_t number = comm.rank() == 0 ? 5 : 0;
    if (before) broadcast(*before, std::as_writable_bytes(std::span(&number, 1)), 0);
    if (behind) broadcast(*behind, std::as_writable_bytes(std::span(&number, 1)), 0);
    EXPECT_EQ(number, 5);
    // A group of a group, in which the members' numbers have changed twice.
    if (comm.size() < 3 || comm.rank() == 0) return barrier(comm);
    std::vector<int> members;
    for (int rank = 1; rank < comm.size(); ++rank) members.push_back(rank);
    const auto outer = comm.group(members);
    const auto inner = outer->group({outer->rank()});
    EXPECT_EQ(inner->size(), 1);
    EXPECT_EQ(inner->world_rank(0), comm.rank());
    barrier(comm);
  });
}

TYPED_TEST_P(CommunicatorConformance, AGroupIsAscendingRanksWithItsOwn) {
  this->on_every_shape([](Communicator& comm) {
    EXPECT_THROW((void)comm.group({}), BadRequest);
    EXPECT_THROW((void)comm.group({comm.rank(), comm.rank()}), BadRequest);
    EXPECT_THROW((void)comm.group({comm.rank(), comm.size()}), BadRequest);
    EXPECT_THROW((void)comm.group({-1, comm.rank()}), BadRequest);
    if (comm.size() > 1) {
      EXPECT_THROW((void)comm.group({(comm.rank() + 1) % comm.size()}), BadRequest);
    }
    barrier(comm);
  });
}

REGISTER_TYPED_TEST_SUITE_P(CommunicatorConformance, JobsGoOnInTheBackgroundInTheirOrderWhileOtherCollectivesRun,
                            DuplicatesDoNotHearEachOther, LocalRanksCountTheRanksOfAHost, GroupsAreWorldsOfTheirOwn,
                            ARankMayBeInSeveralGroups, AGroupIsAscendingRanksWithItsOwn);

}  // namespace spillway::ddl::testing
