#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "ddl/allreduce/tuned_allreduce.h"
#include "ddl/comm/communicator.h"
#include "ddl/comm/thread_world.h"
#include "ddl/torch/comm.h"
#include "tests/support/ddl/shapes.h"

namespace spillway::ddl {
namespace {

using testing::by_host;

/// Returns tensors of odd sizes: a scalar, an empty one, and one in channels-last memory order.
std::vector<at::Tensor> odd_tensors(int rank) {
  std::vector<at::Tensor> tensors{at::full({}, 1.0f), at::arange(7).to(at::kFloat), at::empty({0, 3}),
                                  at::arange(2 * 3 * 5 * 7).to(at::kFloat).view({2, 3, 5, 7}),
                                  at::arange(1009).to(at::kFloat)};
  tensors[3] = tensors[3].contiguous(at::MemoryFormat::ChannelsLast);
  for (at::Tensor& tensor : tensors) tensor.mul_(rank + 1);
  return tensors;
}

void on_ranks(const std::vector<int>& hosts, const std::function<void(const Comm&)>& body,
              const CommOptions& options = {}) {
  ThreadWorld world(hosts);
  run_ranks(
      world,
      [&](Communicator& comm) {
        // The handle shares a communicator that run_ranks owns.
        body(make_comm(std::shared_ptr<Communicator>(std::shared_ptr<void>(), &comm)));
      },
      options);
}

TEST(OperatorsTest, AllreduceSumsTensorsOfOddSizes) {
  on_ranks(by_host({2, 1}), [](const Comm& comm) {
    std::vector<at::Tensor> tensors = odd_tensors(comm->communicator->rank());
    allreduce_(tensors, comm, Reduction::sum);
    const std::vector<at::Tensor> ones = odd_tensors(0);
    for (size_t i = 0; i < tensors.size(); ++i) EXPECT_TRUE(at::equal(tensors[i], ones[i] * 6));
  });
}

TEST(OperatorsTest, AllreduceAveragesLargeTensorsInPlaceAndSmallOnesFused) {
  on_ranks(by_host({2}), [](const Comm& comm) {
    const float rank = static_cast<float>(comm->communicator->rank());
    std::vector<at::Tensor> tensors;
    for (const int64_t count : {1000, 3'000'017, 5, 1'500'000, 700'001, 9}) tensors.push_back(at::full({count}, rank));
    std::vector<const void*> addresses;
    for (const auto& tensor : tensors) addresses.push_back(tensor.data_ptr());
    allreduce_(tensors, comm, Reduction::average);
    for (size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_TRUE(at::equal(tensors[i], at::full_like(tensors[i], 0.5f)));
      EXPECT_EQ(tensors[i].data_ptr(), addresses[i]);
    }
  });
}

TEST(OperatorsTest, BroadcastReachesASubsetOnly) {
  on_ranks(by_host({2, 2}), [](const Comm& comm) {
    const int rank = comm->communicator->rank();
    std::vector<at::Tensor> tensors = odd_tensors(rank);
    tensors.push_back(at::full({3}, rank, at::kDouble));
    broadcast_(tensors, comm, 2, {0, 2, 3});
    const int source = rank == 1 ? 1 : 2;
    const std::vector<at::Tensor> expected = odd_tensors(source);
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::equal(tensors[i], expected[i]));
    EXPECT_EQ(tensors.back()[0].item<double>(), source);
  });
}

TEST(OperatorsTest, ParametersThatRequireGradAreWrittenAndKeepTheirPlaceInAutograd) {
  const Comm comm = make_comm(self_communicator());
  at::Tensor parameter = at::full({4}, 3.0f).requires_grad_();
  const auto version = parameter._version();
  allreduce_(parameter, comm, Reduction::average);
  EXPECT_TRUE(parameter.is_leaf());
  EXPECT_TRUE(parameter.requires_grad());
  EXPECT_GT(parameter._version(), version);
  EXPECT_EQ(parameter[0].item<float>(), 3.0f);
}

TEST(OperatorsTest, NoTensorsAreFine) {
  const Comm comm = make_comm(self_communicator());
  EXPECT_NO_THROW(allreduce_({}, comm, Reduction::sum));
  EXPECT_NO_THROW(broadcast_({}, comm, 0, {0}));
}

TEST(OperatorsTest, WhatIsNotDenseFloatIsRefusedByName) {
  const Comm comm = make_comm(self_communicator());
  EXPECT_THROW(allreduce_(at::zeros({3}, at::kBool), comm, Reduction::sum), c10::Error);
  const at::Tensor strided = at::zeros({4, 4}).t().slice(0, 0, 4, 2);
  try {
    allreduce_(strided, comm, Reduction::sum);
    FAIL() << "a strided tensor was taken";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("is not dense"), std::string::npos) << error.what();
  }
}

TEST(OperatorsTest, DifferentShapesOfTheSameSizeEndInCommError) {
  on_ranks(by_host({2}), [](const Comm& comm) {
    const at::Tensor tensor = comm->communicator->rank() == 0 ? at::zeros({2, 3}) : at::zeros({3, 2});
    EXPECT_THROW(allreduce_(tensor, comm, Reduction::sum), CommError);
  });
}

/// Returns values of mixed sign and magnitude.
at::Tensor term(int64_t rank, int64_t count) {
  return at::arange(count, at::kFloat).mul(0.37).add(rank).sin().mul(rank + 1);
}

TEST(OperatorsTest, ReduceGivesEachHomeTheBitsOfTheAllreduceAndLeavesTheRest) {
  for (const auto& hosts : {by_host({1}), by_host({2}), by_host({3}), by_host({2, 1}), by_host({2, 2})}) {
    on_ranks(hosts, [](const Comm& comm) {
      const int64_t rank = comm->communicator->rank(), size = comm->communicator->size();
      // Parts end within, at and across the chunks of a MiB. One part is empty. The elements behind the last part have
      // no owner.
      const std::vector<int64_t> ends{5, 5, 262'144, 300'000, 700'001};
      std::vector<int64_t> owners;
      for (size_t i = 0; i < ends.size(); ++i) owners.push_back(static_cast<int64_t>(i) % size);
      const auto own = term(rank, 700'010);
      auto everywhere = own.clone(), at_owners = own.clone();
      allreduce_(everywhere, comm, Reduction::average);
      reduce_(at_owners, comm, ends, owners, Reduction::average);
      for (size_t i = 0; i < ends.size(); ++i) {
        const int64_t begin = i == 0 ? 0 : ends[i - 1];
        const auto& expected = owners[i] == rank ? everywhere : own;
        EXPECT_TRUE(at::equal(at_owners.slice(0, begin, ends[i]), expected.slice(0, begin, ends[i]))) << i;
      }
      EXPECT_TRUE(at::equal(at_owners.slice(0, 700'001), own.slice(0, 700'001)));
    });
  }
}

TEST(OperatorsTest, AllreduceOf16BitsSumsInFloat32AndRoundsOnce) {
  for (const auto type : {at::kHalf, at::kBFloat16}) {
    for (const auto& hosts : {by_host({1}), by_host({3}), by_host({2, 2})}) {
      for (const int64_t count : {0, 1, 7, 600'001}) {
        on_ranks(hosts, [&](const Comm& comm) {
          const int64_t size = comm->communicator->size();
          auto vector = term(comm->communicator->rank(), count).to(type);
          allreduce_(vector, comm, Reduction::sum);
          std::vector<at::Tensor> of_host(2, at::zeros({count}));
          for (int64_t rank = 0; rank < size; ++rank) {
            at::Tensor& partial = of_host[comm->communicator->hosts()[rank]];
            partial = partial + term(rank, count).to(type).to(at::kFloat);
          }
          EXPECT_TRUE(at::equal(vector, (of_host[0] + of_host[1]).to(type))) << size << " ranks, " << count;
        });
      }
    }
  }
}

TEST(OperatorsTest, AllreduceTakesEveryTypeAndFusesNeighboursOfOne) {
  on_ranks(by_host({2, 1}), [](const Comm& comm) {
    const int64_t rank = comm->communicator->rank();
    std::vector<at::Tensor> tensors;
    for (const auto type :
         {at::kFloat, at::kFloat, at::kDouble, at::kInt, at::kLong, at::kHalf, at::kBFloat16, at::kFloat})
      tensors.push_back(at::arange(5).add(10 * rank).to(type));
    auto largest = tensors;
    for (auto& tensor : largest) tensor = tensor.clone();
    allreduce_(tensors, comm, Reduction::sum);
    allreduce_(largest, comm, Reduction::maximum);
    for (size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_TRUE(at::equal(tensors[i], at::arange(5).mul(3).add(30).to(tensors[i].scalar_type()))) << i;
      EXPECT_TRUE(at::equal(largest[i], at::arange(5).add(20).to(tensors[i].scalar_type()))) << i;
    }
  });
}

TEST(OperatorsTest, ReduceScatterAndAllGatherAreTheHalvesOfTheAllreduce) {
  for (const auto& hosts : {by_host({1}), by_host({3}), by_host({2, 2}), by_host({3, 1})})
    for (const int64_t count : {int64_t{0}, int64_t{2}, int64_t{700'001}})
      on_ranks(hosts, [count](const Comm& comm) {
        const auto own = term(comm->communicator->rank(), count);
        auto whole = own.clone(), halves = own.clone();
        allreduce_(whole, comm, Reduction::sum);
        const auto version = halves._version();
        reduce_scatter_(halves, comm, Reduction::sum);
        EXPECT_GT(halves._version(), version);
        const auto [begin, end] = own_part(count, comm);
        EXPECT_TRUE(at::equal(halves.slice(0, begin, end), whole.slice(0, begin, end)));
        EXPECT_TRUE(at::equal(halves.slice(0, 0, begin), own.slice(0, 0, begin)));
        EXPECT_TRUE(at::equal(halves.slice(0, end), own.slice(0, end)));
        all_gather_(halves, comm);
        EXPECT_TRUE(at::equal(halves, whole));
      });
  const Comm alone = make_comm(ThreadWorld({0}).communicator(0));
  EXPECT_THROW(reduce_scatter_(at::ones({4}, at::kBool), alone, Reduction::sum), c10::Error);
  EXPECT_THROW(all_gather_(at::ones({4, 4}).slice(1, 0, 2), alone), c10::Error);
}

TEST(OperatorsTest, ReduceRefusesPartsThatAreNone) {
  const Comm comm = make_comm(self_communicator());
  auto vector = at::zeros({10});
  EXPECT_THROW(reduce_(vector, comm, {4, 11}, {0, 0}, Reduction::sum), BadRequest);
  EXPECT_THROW(reduce_(vector, comm, {4, 3}, {0, 0}, Reduction::sum), BadRequest);
  EXPECT_THROW(reduce_(vector, comm, {4}, {1}, Reduction::sum), BadRequest);
  EXPECT_THROW(reduce_(vector, comm, {4, 5}, {0}, Reduction::sum), c10::Error);
  EXPECT_THROW(reduce_(at::zeros({10}, at::kBool), comm, {4}, {0}, Reduction::sum), c10::Error);
}

TEST(OperatorsTest, ReduceNoticesThatRanksMeanOtherHomes) {
  EXPECT_THROW(on_ranks(by_host({2}),
                        [](const Comm& comm) {
                          auto vector = at::zeros({10});
                          reduce_(vector, comm, {10}, {comm->communicator->rank()}, Reduction::sum);
                        }),
               CommError);
}

TEST(OperatorsTest, CalibratedCommsHoldTheSameMeasuredCostsOnAllRanks) {
  ThreadWorld world({0, 0});
  std::vector<std::optional<Costs>> costs(2);
  run_ranks(world, [&](Communicator& rank) {
    const Comm comm = make_calibrated_comm({&rank, [](Communicator*) {}});
    costs[rank.rank()] = comm->allreduce->costs();
  });
  ASSERT_TRUE(costs[0].has_value());
  EXPECT_EQ(costs[0]->levels.size(), 1u);
  EXPECT_EQ(costs[0]->levels, costs[1]->levels);
}

}  // namespace
}  // namespace spillway::ddl
