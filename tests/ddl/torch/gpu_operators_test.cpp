// Tests of the operators for GPU tensors, run on CPU tensors: the code does not ask which device owns the memory.
#include "ddl/torch/gpu_operators.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include <limits>

#include "core/error.h"
#include "ddl/comm/collectives.h"
#include "ddl/comm/communicator.h"
#include "ddl/comm/thread_world.h"
#include "ddl/torch/comm.h"
#include "tests/support/ddl/fake_gpu_network.h"
#include "tests/support/ddl/shapes.h"

namespace spillway::ddl {
namespace {

using testing::by_host;
using testing::Circle;
using testing::FakeNetwork;

constexpr std::array kTypes{at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt, at::kLong};
constexpr std::array kReductions{Reduction::sum, Reduction::average, Reduction::maximum, Reduction::minimum};

enum class Way { network, staging };

/// One rank and the network that joins its GPUs to the others.
struct Rank {
  const Comm comm;
  FakeNetwork network;
  GpuBackend gpus;

  Rank(Communicator& own, std::shared_ptr<Circle> circle, Way way)
      : comm(make_comm(std::shared_ptr<Communicator>(std::shared_ptr<void>(), &own))),
        network(std::move(circle), way == Way::network ? str("card ", own.rank()) : "one card"),
        gpus(own, [this] { return &network; }) {}
  int rank() const { return comm->communicator->rank(); }
  int size() const { return comm->communicator->size(); }
  void allreduce(at::TensorList tensors, Reduction reduction) { allreduce_on_gpus(tensors, comm, gpus, reduction); }
  void reduce_scatter(const at::Tensor& vector, Reduction reduction) {
    reduce_scatter_on_gpus(vector, comm, gpus, reduction);
  }
  void all_gather(const at::Tensor& vector) { all_gather_on_gpus(vector, comm, gpus); }
};

void on_gpus(const std::vector<int>& hosts, Way way, const std::function<void(Rank&)>& body) {
  ThreadWorld world(hosts);
  const auto circle = std::make_shared<Circle>(static_cast<int>(hosts.size()));
  run_ranks(world, [&](Communicator& comm) {
    // Over the network every rank has a GPU of its own. Staging needs two ranks that share one GPU.
    Rank rank(comm, circle, way);
    body(rank);
  });
}

/// Returns small integers. Every type holds their sums exactly, except the 16-bit floats when they sum in 16 bits.
at::Tensor values(int64_t rank, int64_t count, at::ScalarType type) {
  return at::arange(count, at::kLong).mul(7 + rank).remainder(23).sub(rank).to(type);
}

at::Tensor expected(int64_t size, int64_t count, at::ScalarType type, Reduction reduction) {
  std::vector<at::Tensor> all;
  for (int64_t rank = 0; rank < size; ++rank) all.push_back(values(rank, count, type).to(at::kDouble));
  const at::Tensor stack = at::stack(all);
  if (reduction == Reduction::maximum) return stack.amax(0).to(type);
  if (reduction == Reduction::minimum) return stack.amin(0).to(type);
  const at::Tensor sum = stack.sum(0);
  if (reduction == Reduction::sum) return sum.to(type);
  const at::Tensor mean = sum / size;
  return (at::isIntegralType(type, false) ? mean.trunc() : mean).to(type);
}

/// Expects that all ranks have the same bits.
void expect_same_bits(const Rank& rank, const at::Tensor& own) {
  const auto bytes = static_cast<size_t>(own.nbytes());
  std::vector<std::byte> all(bytes * static_cast<size_t>(rank.size()));
  allgather(*rank.comm->communicator, {static_cast<const std::byte*>(own.const_data_ptr()), bytes}, all);
  for (int other = 1; other < rank.size(); ++other)
    EXPECT_TRUE(std::equal(all.begin(), all.begin() + bytes, all.begin() + bytes * other));
}

TEST(GpuOperatorsTest, EveryTypeReductionShapeAndCountIsRightAndAlikeOnAllRanks) {
  for (const Way way : {Way::network, Way::staging})
    for (const auto& hosts : testing::both_orders({{1}, {3}, {1, 1}, {2, 2}, {2, 1}, {4, 2}, {2, 2, 2}}))
      on_gpus(hosts, way, [&](Rank& rank) {
        const int64_t size = rank.size();
        for (const auto type : kTypes)
          for (const auto reduction : kReductions)
            for (const int64_t count : {int64_t{0}, int64_t{1}, size - 1, size, size + 1, int64_t{1009}}) {
              at::Tensor tensor = values(rank.rank(), count, type);
              rank.allreduce(tensor, reduction);
              const at::Tensor right = expected(size, count, type, reduction);
              EXPECT_TRUE(type == at::kFloat || type == at::kDouble ? at::allclose(tensor, right)
                                                                    : at::equal(tensor, right))
                  << size << " ranks, " << count << " of " << type << ", " << name_of(reduction);
              expect_same_bits(rank, tensor);
            }
      });
}

TEST(GpuOperatorsTest, SumsOf16BitsAreTakenInFloat32) {
  for (const Way way : {Way::network, Way::staging})
    for (const auto type : {at::kHalf, at::kBFloat16})
      on_gpus(by_host({2, 2}), way, [&](Rank& rank) {
        // Summed in 16 bits, a 1 is lost beside 2048 or 256. Summed wider, three of them are not lost.
        at::Tensor tensor = at::full({11}, rank.rank() == 0 ? (type == at::kHalf ? 2048 : 256) : 1, type);
        rank.allreduce(tensor, Reduction::sum);
        const float sum = type == at::kHalf ? 2051 : 259;
        EXPECT_TRUE(at::equal(tensor, at::full({11}, sum).to(type)));
      });
}

TEST(GpuOperatorsTest, ANaNIsTheLargestAndTheSmallest) {
  for (const Way way : {Way::network, Way::staging})
    on_gpus(by_host({2}), way, [&](Rank& rank) {
      for (const auto reduction : {Reduction::maximum, Reduction::minimum}) {
        at::Tensor tensor = at::full({3}, rank.rank() == 1 ? std::numeric_limits<float>::quiet_NaN() : 1.f);
        rank.allreduce(tensor, reduction);
        EXPECT_TRUE(tensor.isnan().all().item<bool>());
      }
    });
}

TEST(GpuOperatorsTest, ManyTensorsOfOddLayoutsGoInFewCallsAndLargeOnesInBatches) {
  for (const Way way : {Way::network, Way::staging})
    on_gpus(by_host({2, 2}), way, [&](Rank& rank) {
      const auto make = [](int64_t factor) {
        std::vector<at::Tensor> all{
            at::full({}, 1.f),
            at::empty({0, 3}),
            at::arange(210).to(at::kFloat).view({2, 3, 5, 7}).contiguous(at::MemoryFormat::ChannelsLast),
            at::arange(5'000'011).remainder(1000).to(at::kFloat),
            at::ones({9}, at::kLong),
            at::ones({4}, at::kLong)};
        for (auto& tensor : all) tensor.mul_(factor);
        return all;
      };
      auto tensors = make(rank.rank() + 1);
      tensors[0].requires_grad_();
      {
        const at::NoGradGuard no_grad;
        rank.allreduce(tensors, Reduction::sum);
      }
      const auto right = make(10);
      for (size_t i = 0; i < right.size(); ++i) EXPECT_TRUE(at::equal(tensors[i].detach(), right[i])) << i;
      // There are two calls for each of five buckets: the small tensors, 20 MB as 8 + 8 + 4 MiB, and the int64 ones.
      const auto calls = std::count_if(rank.network.log.begin(), rank.network.log.end(),
                                       [](const auto& call) { return call.starts_with("reduce-scatter"); });
      EXPECT_EQ(calls, way == Way::network ? 2 * 5 : 0);
    });
}

at::Tensor term(int64_t rank, int64_t count) {
  return at::arange(count, at::kFloat).mul(0.37).add(rank).sin().mul(rank + 1);
}

TEST(GpuOperatorsTest, WhatIsStagedHasTheBitsOfTheCpusAllreduce) {
  on_gpus(by_host({2, 1}), Way::staging, [](Rank& rank) {
    at::Tensor staged = term(rank.rank(), 3'000'017), plain = staged.clone();
    rank.allreduce(staged, Reduction::average);
    allreduce_(plain, rank.comm, Reduction::average);
    EXPECT_TRUE(at::equal(staged, plain));
    EXPECT_EQ(rank.gpus.decision(), "staged on the host: ranks 0 and 1 share GPU one card");
  });
}

TEST(GpuOperatorsTest, ReduceGivesEachHomeTheBitsOfAllreduceAndLeavesTheRest) {
  for (const Way way : {Way::network, Way::staging})
    for (const auto& hosts : {by_host({1}), by_host({3}), by_host({2, 2})})
      on_gpus(hosts, way, [](Rank& rank) {
        const int64_t count = 2'500'000;
        const std::vector<int64_t> ends{5, 5, 262'144, 2'097'152, 2'300'001};  // the first 8 MiB end at the fourth part
        std::vector<int64_t> owners;
        for (size_t i = 0; i < ends.size(); ++i) owners.push_back(static_cast<int64_t>(i) % rank.size());
        const at::Tensor own = term(rank.rank(), count);
        at::Tensor everywhere = own.clone(), at_owners = own.clone();
        rank.allreduce(everywhere, Reduction::average);
        reduce_on_gpus(at_owners, rank.comm, rank.gpus, ends, owners, Reduction::average);
        for (size_t i = 0; i <= ends.size(); ++i) {
          const int64_t begin = i == 0 ? 0 : ends[i - 1], end = i < ends.size() ? ends[i] : count;
          const bool mine = i < ends.size() && owners[i] == rank.rank();
          EXPECT_TRUE(at::equal(at_owners.slice(0, begin, end), (mine ? everywhere : own).slice(0, begin, end))) << i;
        }
      });
}

TEST(GpuOperatorsTest, ReduceRefusesPartsThatAreNone) {
  on_gpus(by_host({1}), Way::network, [](Rank& rank) {
    const auto reduce = [&](const std::vector<int64_t>& ends, const std::vector<int64_t>& owners) {
      reduce_on_gpus(at::zeros({10}), rank.comm, rank.gpus, ends, owners, Reduction::sum);
    };
    EXPECT_THROW(reduce({4, 11}, {0, 0}), BadRequest);
    EXPECT_THROW(reduce({4, 3}, {0, 0}), BadRequest);
    EXPECT_THROW(reduce({4}, {1}), BadRequest);
    EXPECT_THROW(reduce({4, 5}, {0}), c10::Error);
  });
}

/// Expects that elements `range` are those of `part`, and the others those of `rest`, bit for bit.
void expect_only(const at::Tensor& found, Range range, const at::Tensor& part, const at::Tensor& rest) {
  const at::Tensor expected = rest.clone();
  expected.slice(0, range.begin, range.end).copy_(part.slice(0, range.begin, range.end));
  EXPECT_TRUE(at::equal(found, expected)) << found.numel() << " of " << found.scalar_type();
}

TEST(GpuOperatorsTest, ReduceScatterAndAllGatherAreTheHalvesOfTheAllreduce) {
  for (const Way way : {Way::network, Way::staging})
    for (const auto& hosts : testing::both_orders({{1}, {3}, {2, 2}, {2, 1}, {2, 2, 2}}))
      on_gpus(hosts, way, [&](Rank& rank) {
        const auto check = [&](int64_t count, at::ScalarType type, Reduction reduction) {
          const at::Tensor own = term(rank.rank(), count).mul(100).to(type);
          at::Tensor whole = own.clone(), halves = own.clone();
          rank.allreduce(whole, reduction);
          const auto version = halves._version();
          rank.reduce_scatter(halves, reduction);
          EXPECT_GT(halves._version(), version);
          expect_only(halves, own_part(count, rank.comm), whole, own);
          rank.all_gather(halves);
          EXPECT_TRUE(at::equal(halves, whole));
          EXPECT_GT(halves._version(), version + 1);
        };
        for (const int64_t count : {0, 1, 2, 5, 6, 1009})
          for (const auto type : kTypes)
            for (const auto reduction : kReductions) check(count, type, reduction);
        if (hosts.size() != 3) return;
        check(5'000'011, at::kFloat, Reduction::average);  // 8 + 8 + 4 MiB
        check(5'000'011, at::kHalf, Reduction::sum);
      });
}

TEST(GpuOperatorsTest, StagedHalvesHaveTheBitsOfTheCpus) {
  on_gpus(by_host({2, 1}), Way::staging, [](Rank& rank) {
    at::Tensor staged = term(rank.rank(), 5'000'011), plain = staged.clone();
    rank.reduce_scatter(staged, Reduction::average);
    reduce_scatter_(plain, rank.comm, Reduction::average);
    EXPECT_TRUE(at::equal(staged, plain));
  });
}

TEST(GpuOperatorsTest, AHalfMovesHalfOfAnAllreduce) {
  on_gpus(by_host({3, 3}), Way::network, [](Rank& rank) {
    const at::Tensor vector = term(rank.rank(), 12).view({3, 4}).t();  // dense, in another order
    (void)rank.gpus.levels(vector.device());
    rank.network.log.clear();
    rank.reduce_scatter(vector, Reduction::sum);
    EXPECT_EQ(rank.network.log, (testing::CallLog{"reduce-scatter of 4 among 3", "reduce-scatter of 2 among 2"}));
    rank.network.log.clear();
    rank.all_gather(vector);
    EXPECT_EQ(rank.network.log, (testing::CallLog{"all-gather of 2 among 2", "all-gather of 4 among 3"}));
  });
}

TEST(GpuOperatorsTest, ABroadcastReachesSomeOrAllAndSomeAloneDecideNothing) {
  for (const Way way : {Way::network, Way::staging})
    on_gpus(by_host({2, 2}), way, [&](Rank& rank) {
      const auto send = [&](int root, std::vector<int> members) {
        std::vector<at::Tensor> tensors{at::full({3}, rank.rank()), at::full({2, 2}, rank.rank() == root, at::kBool),
                                        at::full({2'500'000}, rank.rank(), at::kFloat)};
        broadcast_on_gpus(tensors, rank.comm, rank.gpus, root, members);
        const bool member = std::find(members.begin(), members.end(), rank.rank()) != members.end();
        const int64_t source = member ? root : rank.rank();
        EXPECT_TRUE(at::equal(tensors[0], at::full({3}, source)));
        EXPECT_EQ(tensors[1].all().item<bool>(), member);
        EXPECT_TRUE(at::equal(tensors[2], at::full({2'500'000}, source, at::kFloat)));
      };
      send(2, {0, 2, 3});
      EXPECT_FALSE(rank.gpus.decided());
      send(1, {0, 1, 2, 3});
      EXPECT_TRUE(rank.gpus.decided());
      rank.network.log.clear();
      send(3, {3, 1});
      EXPECT_EQ(rank.network.log.empty(), way == Way::staging || rank.rank() % 2 == 0);
    });
}

TEST(GpuOperatorsTest, RanksThatMeanOtherShapesOrCallsGetACommError) {
  for (const Way way : {Way::network, Way::staging}) {
    on_gpus(by_host({2}), way, [](Rank& rank) {
      const at::Tensor tensor = rank.rank() == 0 ? at::zeros({2, 3}) : at::zeros({3, 2});
      EXPECT_THROW(rank.allreduce(tensor, Reduction::sum), CommError);
    });
    on_gpus(by_host({2}), way, [](Rank& rank) {
      EXPECT_THROW(rank.allreduce(at::zeros({4}), rank.rank() == 0 ? Reduction::sum : Reduction::average), CommError);
    });
    on_gpus(by_host({2}), way, [](Rank& rank) {
      const at::Tensor tensor = at::zeros({4});
      const auto the_same_parts_otherwise = [&] {
        if (rank.rank() == 0) return rank.reduce_scatter(tensor, Reduction::sum);
        reduce_on_gpus(tensor, rank.comm, rank.gpus, {2, 4}, {0, 1}, Reduction::sum);
      };
      EXPECT_THROW(the_same_parts_otherwise(), CommError);
    });
    on_gpus(by_host({2}), way, [](Rank& rank) {
      const at::Tensor tensor = at::zeros({4});
      const auto on_other_devices = [&] {
        rank.rank() == 0 ? rank.allreduce(tensor, Reduction::sum) : allreduce_(tensor, rank.comm, Reduction::sum);
      };
      EXPECT_THROW(on_other_devices(), CommError);
    });
  }
}

GpuCapability answer(const std::string& gpu, int host, const std::string& network = "NCCL 2.28.9") {
  GpuCapability one;
  gpu.copy(one.gpu.data(), gpu.size());
  network.copy(one.network.data(), network.size());
  one.host = host;
  return one;
}

TEST(GpusTest, ANetworkIsUsedWhereEveryRankHasAGpuOfItsOwn) {
  const std::vector<GpuCapability> own{answer("a", 0), answer("b", 0), answer("a", 1), answer("b", 1)};
  EXPECT_TRUE(decide(own, Levels::parse("2x2", 4)).uses_nccl);
  EXPECT_EQ(decide(own, Levels::parse("2x2", 4)).text, "NCCL 2.28.9, by levels 2x2");
  EXPECT_EQ(decide(own, Levels::parse("3+1", 4)).text, "NCCL 2.28.9, all ranks as one level, for uneven 3+1");
  EXPECT_EQ(decide(std::span(own).first(1), Levels(1)).text, "NCCL 2.28.9");
}

TEST(GpusTest, StagingSaysWhy) {
  const Levels two(2);
  std::vector<GpuCapability> answers{answer("a", 0), answer("a", 0)};
  EXPECT_FALSE(decide(answers, two).uses_nccl);
  EXPECT_EQ(decide(answers, two).text, "staged on the host: ranks 0 and 1 share GPU a");
  answers[1] = answer("b", 0, "");
  std::string("no such library").copy(answers[1].without.data(), 15);
  EXPECT_EQ(decide(answers, two).text, "staged on the host: rank 1: no such library");
  answers[1] = answer("b", 0, "NCCL 2.27.3");
  EXPECT_EQ(decide(answers, two).text, "staged on the host: rank 0 has NCCL 2.28.9, rank 1 NCCL 2.27.3");
  answers[1] = answer("b", 0);
  answers[1].deterministic = 1;
  EXPECT_FALSE(decide(answers, two).uses_nccl);
  EXPECT_NE(decide(answers, two).text.find("rank 1 asked for deterministic algorithms"), std::string::npos);
}

TEST(GpusTest, ARankThatChangesItsGpuTellsTheOthersWhy) {
  on_gpus(by_host({2}), Way::network, [](Rank& rank) {
    const c10::Device first(at::kCUDA, 0), second(at::kCUDA, 1);
    ASSERT_NE(rank.gpus.levels(first), nullptr);
    try {
      if (rank.rank() == 1)
        rank.gpus.levels(second);
      else
        rank.allreduce(at::zeros({4}), Reduction::maximum);  // staged: waits for rank 1
      ADD_FAILURE() << "rank " << rank.rank() << " heard of no other card";
    } catch (const CommError& error) {
      EXPECT_NE(std::string(error.what()).find("a tensor is on cuda:1, but this communicator's were on cuda:0"),
                std::string::npos)
          << error.what();
    }
  });
}

TEST(GpusTest, WithoutAGpuThereIsNoNetworkAndTheReasonIsSaid) {
  const auto self = self_communicator();
  GpuBackend gpus(*self);
  EXPECT_EQ(gpus.decision(), "");
  const bool library = gpus.levels(at::kCPU) != nullptr;
  EXPECT_FALSE(library);
  EXPECT_TRUE(gpus.decision().starts_with("staged on the host: rank 0: ")) << gpus.decision();
}

TEST(GpuOperatorsTest, ListsOfSeveralDevicesAreRefusedByName) {
  const Comm comm = make_comm(self_communicator());
  const std::vector<at::Tensor> mixed{at::zeros({3}), at::zeros({3}, at::kMeta)};
  for (const auto& call : {std::function<void()>([&] { allreduce_(mixed, comm, Reduction::sum); }),
                           std::function<void()>([&] { broadcast_(mixed, comm, 0, {0}); })})
    try {
      call();
      ADD_FAILURE() << "tensors of two devices were taken";
    } catch (const c10::Error& error) {
      EXPECT_NE(std::string(error.what()).find("one is on cpu, another on meta; allowed: one device"),
                std::string::npos)
          << error.what();
    }
  EXPECT_THROW(allreduce_(at::zeros({3}, at::kMeta), comm, Reduction::sum), c10::Error);
}

TEST(GpuOperatorsTest, TypesThatAreNotReducedAreRefusedUnderTheOperatorsName) {
  on_gpus(by_host({1}), Way::network, [](Rank& rank) {
    const at::Tensor flags = at::zeros({3}, at::kBool);
    const auto expect_named = [](const char* name, const std::function<void()>& call) {
      try {
        call();
        ADD_FAILURE() << name << " took Bool";
      } catch (const c10::Error& error) {
        EXPECT_NE(std::string(error.what()).find(str("[ddl] ", name, ": a tensor is Bool")), std::string::npos)
            << error.what();
      }
    };
    expect_named("allreduce_", [&] { rank.allreduce(flags, Reduction::sum); });
    expect_named("reduce_", [&] { reduce_on_gpus(flags, rank.comm, rank.gpus, {3}, {0}, Reduction::sum); });
    expect_named("reduce_scatter_", [&] { rank.reduce_scatter(flags, Reduction::sum); });
    expect_named("all_gather_", [&] { rank.all_gather(flags); });
  });
}

TEST(GpuOperatorsTest, TheOperatorsHaveKernelsForGpus) {
  for (const char* name : {"spillway::allreduce_", "spillway::broadcast_", "spillway::reduce_",
                           "spillway::reduce_scatter_", "spillway::all_gather_"})
    EXPECT_TRUE(
        c10::Dispatcher::singleton().findSchemaOrThrow(name, "").hasKernelForDispatchKey(c10::DispatchKey::CUDA))
        << name;
}

}  // namespace
}  // namespace spillway::ddl
