/// The suite of collectives that only move bytes, which every backend must pass.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "ddl/comm/collectives.h"
#include "tests/support/ddl/contribution.h"
#include "tests/support/ddl/on_every_shape.h"
#include "tests/support/refusal.h"

namespace spillway::ddl::testing {

template <class World>
class CollectivesConformance : public OnEveryShape<World> {};
TYPED_TEST_SUITE_P(CollectivesConformance);

TYPED_TEST_P(CollectivesConformance, BroadcastReachesTheMembersAndNobodyElse) {
  this->on_every_shape([](Communicator& comm) {
    for (int root = 0; root < comm.size(); ++root) {
      std::vector<int> members;  // all ranks except root's successor, backwards
      for (int rank = comm.size() - 1; rank >= 0; --rank) {
        if (rank == root || rank != (root + 1) % comm.size()) members.push_back(rank);
      }
      std::vector<float> data = contribution(comm.rank(), 301);
      broadcast(comm, std::as_writable_bytes(std::span(data)), root, members);
      const bool member = std::find(members.begin(), members.end(), comm.rank()) != members.end();
      EXPECT_TRUE(same_bits(data, contribution(member ? root : comm.rank(), 301)));
    }
  });
}

TYPED_TEST_P(CollectivesConformance, BroadcastOfManyPiecesAndOfNothing) {
  this->on_every_shape([](Communicator& comm) {
    std::vector<float> data = contribution(comm.rank(), 2'200'003);
    const int root = comm.size() - 1;
    broadcast(comm, std::as_writable_bytes(std::span(data)), root);
    EXPECT_TRUE(same_bits(data, contribution(root, 2'200'003)));
    broadcast(comm, {}, root);
  });
}

TYPED_TEST_P(CollectivesConformance, BroadcastRefusesABadListOfMembers) {
  this->on_every_shape([](Communicator& comm) {
    std::vector<std::byte> data(8);
    EXPECT_THROW(broadcast(comm, data, 0, std::vector{0, comm.size()}), BadRequest);
    EXPECT_THROW(broadcast(comm, data, 0, std::vector{0, 0}), BadRequest);
    EXPECT_THROW(broadcast(comm, data, 0, std::vector<int>{}), BadRequest);
  });
}

TYPED_TEST_P(CollectivesConformance, AllgatherKeepsRankOrder) {
  this->on_every_shape([](Communicator& comm) {
    const int64_t own = 100 + comm.rank();
    std::vector<int64_t> all(comm.size());
    allgather(comm, std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all)));
    for (int rank = 0; rank < comm.size(); ++rank) EXPECT_EQ(all[rank], 100 + rank);
  });
}

TYPED_TEST_P(CollectivesConformance, WhatSomeRanksRefuseAllRefuseAndGoOn) {
  this->on_every_shape([](Communicator& comm) {
    EXPECT_NO_THROW(throw_on_all_ranks(comm, ""));
    const int last = comm.size() - 1;
    for (const int first : {0, last}) {
      const std::string own =
          str("rank ", comm.rank(), " cannot, ", std::string(static_cast<size_t>(comm.rank()), '!'));
      const std::string expected = str("rank ", first, " cannot, ", std::string(static_cast<size_t>(first), '!'));
      EXPECT_EQ(spillway::testing::refusal([&] { throw_on_all_ranks(comm, comm.rank() >= first ? own : ""); }),
                expected);
    }
    EXPECT_NO_THROW(throw_on_all_ranks(comm, "")) << "nobody is dead";
  });
}

REGISTER_TYPED_TEST_SUITE_P(CollectivesConformance, BroadcastReachesTheMembersAndNobodyElse,
                            BroadcastOfManyPiecesAndOfNothing, BroadcastRefusesABadListOfMembers,
                            AllgatherKeepsRankOrder, WhatSomeRanksRefuseAllRefuseAndGoOn);

}  // namespace spillway::ddl::testing
