// Tests of a rank whose world is not there.
#include "ddl/comm/simulated_world.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/error.h"
#include "ddl/allreduce/allreduce.h"
#include "ddl/allreduce/owner_reduction.h"
#include "ddl/comm/collectives.h"

namespace spillway::ddl {
namespace {

TEST(SimulatedWorldTest, ARankHasItsPlaceAndItsHost) {
  const auto comm = simulated_communicator(5, Levels::parse("4x2", 8));
  EXPECT_EQ(comm->rank(), 5);
  EXPECT_EQ(comm->size(), 8);
  EXPECT_TRUE(comm->is_simulated());
  EXPECT_EQ(comm->local_rank(), 1);
  EXPECT_EQ(comm->local_size(), 4);
  EXPECT_EQ(comm->levels().shape(), "4x2");
}

TEST(SimulatedWorldTest, CollectivesReturnAtOnceAndLeaveThisRanksBytes) {
  const auto comm = simulated_communicator(1, Levels(3));
  barrier(*comm);
  std::vector<float> vector{1, 2, 3};
  Allreduce(*comm).reduce(vector, Reduction::sum);
  EXPECT_EQ(vector, (std::vector<float>{1, 2, 3}));
  broadcast(*comm, std::as_writable_bytes(std::span(vector)), 0);
  EXPECT_EQ(vector, (std::vector<float>{1, 2, 3}));
  OwnerReduction at_owners(*comm, 3, Element::float32, {{{0, 3}, 2}});
  std::vector<std::byte> scratch(at_owners.reduce_scratch_bytes());
  at_owners.reduce(std::as_writable_bytes(std::span(vector)), Reduction::sum, scratch);
  EXPECT_EQ(vector, (std::vector<float>{1, 2, 3}));
}

TEST(SimulatedWorldTest, EveryRankGathersWhatThisOneHas) {
  const auto comm = simulated_communicator(1, Levels(3));
  const int own = 7;
  std::vector<int> all(3);
  allgather(*comm, std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all)));
  EXPECT_EQ(all, (std::vector<int>{7, 7, 7}));
}

TEST(SimulatedWorldTest, ADuplicateIsSimulatedToo) {
  const auto comm = simulated_communicator(0, Levels(2));
  EXPECT_TRUE(comm->duplicate()->is_simulated());
  EXPECT_FALSE(self_communicator()->is_simulated());
}

TEST(SimulatedWorldTest, ARankOutsideTheWorldIsRefused) {
  EXPECT_THROW(simulated_communicator(2, Levels(2)), BadRequest);
  EXPECT_THROW(simulated_communicator(-1, Levels(2)), BadRequest);
}

}  // namespace
}  // namespace spillway::ddl
