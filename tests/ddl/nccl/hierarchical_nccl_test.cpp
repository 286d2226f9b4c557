#include "ddl/nccl/hierarchical_nccl.h"

#include <gtest/gtest.h>

#include <cstring>
#include <latch>
#include <set>
#include <thread>

#include "ddl/comm/thread_world.h"
#include "tests/support/ddl/fake_gpu_network.h"
#include "tests/support/ddl/shapes.h"

namespace spillway::ddl {
namespace {

using testing::by_host;
using testing::CallLog;
using testing::Circle;
using testing::FakeNetwork;
using testing::GpuFault;

struct OnGpus {
  std::vector<int> hosts;
  CommOptions options = {};
  std::function<GpuFault(int rank)> fault = {};

  void run(const std::function<void(HierarchicalNccl&, Communicator&, CallLog&)>& body) const {
    ThreadWorld world(hosts);
    const auto circle = std::make_shared<Circle>(static_cast<int>(hosts.size()));
    run_ranks(
        world,
        [&](Communicator& comm) {
          FakeNetwork network(circle, "card", fault ? fault(comm.rank()) : GpuFault());
          HierarchicalNccl levels(comm, network.join(network.make_unique_id(), comm.size(), comm.rank(), 0));
          network.log.clear();
          body(levels, comm, network.log);
        },
        options);
  }
};

std::vector<OnGpus> worlds() {
  std::vector<OnGpus> all;
  for (const auto& hosts :
       testing::both_orders({{1}, {2}, {5}, {1, 1}, {1, 1, 1}, {2, 2}, {4, 2}, {3, 1}, {2, 3}, {3, 3}, {2, 2, 2}}))
    all.push_back({hosts});
  const auto declared = [](const std::string& text, int size) {
    return OnGpus{std::vector<int>(static_cast<size_t>(size)), {.levels = Levels::parse(text, size).labels()}};
  };
  all.push_back(declared("2x2x2", 8));
  all.push_back(declared("2x3", 6));
  return all;
}

template <class T>
void expect_sums(const OnGpus& world, Element element, int64_t count) {
  world.run([&](HierarchicalNccl& levels, Communicator& comm, CallLog&) {
    const int64_t padded = levels.padded(count), size = comm.size();
    EXPECT_GE(padded, count);
    EXPECT_LT(padded, count + size);
    std::vector<T> data(static_cast<size_t>(padded));
    const auto value = [](int64_t rank, int64_t i) { return static_cast<T>((rank + 1) * (i % 11 + 1)); };
    for (int64_t i = 0; i < padded; ++i) data[static_cast<size_t>(i)] = value(comm.rank(), i);
    const Range mine = levels.reduce_scatter(data.data(), padded, element, Reduction::sum);
    EXPECT_EQ(mine.size(), padded / size);
    // The elements outside the rank's own range must not matter.
    for (int64_t i = 0; i < padded; ++i)
      if (i < mine.begin || i >= mine.end) data[static_cast<size_t>(i)] = T(-1);
    levels.all_gather(data.data(), padded, element);
    for (int64_t i = 0; i < padded; ++i)
      EXPECT_EQ(data[static_cast<size_t>(i)], value(size * (size + 1) / 2 - 1, i)) << i << " of " << padded;
  });
}

TEST(HierarchicalNcclTest, SumsAreRightOverEveryShapeAndCount) {
  for (const OnGpus& world : worlds()) {
    const auto size = static_cast<int64_t>(world.hosts.size());
    for (const int64_t count : {int64_t{1}, size - 1, size, size + 1, int64_t{101}}) {
      if (count == 0) continue;
      expect_sums<float>(world, Element::float32, count);
      expect_sums<double>(world, Element::float64, count);
      expect_sums<int32_t>(world, Element::int32, count);
      expect_sums<int64_t>(world, Element::int64, count);
    }
  }
}

TEST(HierarchicalNcclTest, EveryRankKnowsAllRanksParts) {
  for (const OnGpus& world : worlds())
    world.run([](HierarchicalNccl& levels, Communicator& comm, CallLog&) {
      const int64_t size = comm.size(), count = levels.padded(100);
      std::vector<float> data(static_cast<size_t>(count));
      EXPECT_EQ(levels.part(count, comm.rank()),
                levels.reduce_scatter(data.data(), count, Element::float32, Reduction::sum));
      std::set<int64_t> begins;
      for (int rank = 0; rank < size; ++rank) {
        const Range part = levels.part(count, rank);
        EXPECT_EQ(part.size(), count / size);
        EXPECT_EQ(part.begin % part.size(), 0);
        begins.insert(part.begin);
      }
      EXPECT_EQ(static_cast<int64_t>(begins.size()), size);
    });
}

TEST(HierarchicalNcclTest, AllRanksGetTheSameBitsOfSumsThatRound) {
  for (const OnGpus& world : worlds()) {
    std::vector<std::vector<float>> results(world.hosts.size());
    world.run([&](HierarchicalNccl& levels, Communicator& comm, CallLog&) {
      std::vector<float> data(static_cast<size_t>(levels.padded(997)));
      for (size_t i = 0; i < data.size(); ++i)
        data[i] = 1.f / static_cast<float>(static_cast<int>(i) % 97 + 3 * comm.rank() + 1);
      const auto count = static_cast<int64_t>(data.size());
      levels.reduce_scatter(data.data(), count, Element::float32, Reduction::sum);
      levels.all_gather(data.data(), count, Element::float32);
      results[static_cast<size_t>(comm.rank())] = data;
    });
    for (const auto& result : results)
      EXPECT_EQ(std::memcmp(result.data(), results[0].data(), result.size() * sizeof(float)), 0);
  }
}

TEST(HierarchicalNcclTest, LargestAndSmallestOfIntegersAreFound) {
  OnGpus{by_host({2, 2})}.run([](HierarchicalNccl& levels, Communicator& comm, CallLog&) {
    for (const auto reduction : {Reduction::maximum, Reduction::minimum}) {
      std::vector<int32_t> data{comm.rank(), -comm.rank(), 7, 5 - comm.rank()};
      levels.reduce_scatter(data.data(), 4, Element::int32, reduction);
      levels.all_gather(data.data(), 4, Element::int32);
      const bool largest = reduction == Reduction::maximum;
      EXPECT_EQ(data, largest ? (std::vector<int32_t>{3, 0, 7, 5}) : (std::vector<int32_t>{0, -3, 7, 2}));
    }
  });
}

TEST(HierarchicalNcclTest, TheLibrarysOwnAllreduceIsOneCallOfAllRanks) {
  OnGpus{by_host({2, 2})}.run([](HierarchicalNccl& levels, Communicator& comm, CallLog& log) {
    const std::vector<float> in{1, 2, static_cast<float>(comm.rank())};
    std::vector<float> out(3);
    levels.all_reduce(in.data(), out.data(), 3, Element::float32, Reduction::sum);
    EXPECT_EQ(out, (std::vector<float>{4, 8, 6}));
    levels.all_reduce(out.data(), out.data(), 3, Element::float32, Reduction::sum);
    EXPECT_EQ(out, (std::vector<float>{16, 32, 24}));
    EXPECT_EQ(log, (CallLog{"all-reduce of 3 among 4", "all-reduce of 3 among 4"}));
  });
}

CallLog calls_of(const OnGpus& world, int rank, int64_t count) {
  CallLog calls;
  world.run([&](HierarchicalNccl& levels, Communicator& comm, CallLog& log) {
    std::vector<float> data(static_cast<size_t>(count));
    levels.reduce_scatter(data.data(), count, Element::float32, Reduction::sum);
    levels.all_gather(data.data(), count, Element::float32);
    if (comm.rank() == rank) calls = log;
  });
  return calls;
}

TEST(HierarchicalNcclTest, OnlyThePartOfARankLeavesItsHost) {
  const CallLog by_levels{"reduce-scatter of 4 among 3", "reduce-scatter of 2 among 2", "all-gather of 2 among 2",
                          "all-gather of 4 among 3"};
  EXPECT_EQ(calls_of({by_host({3, 3})}, 4, 12), by_levels);
  EXPECT_EQ(calls_of({testing::dealt({3, 3})}, 4, 12), by_levels);
}

TEST(HierarchicalNcclTest, AnUnevenTreeIsOneLevelOfAllRanks) {
  EXPECT_FALSE(is_even(Levels::parse("4+2", 6)));
  EXPECT_TRUE(is_even(Levels::parse("3x2", 6)));
  EXPECT_TRUE(is_even(Levels(1)));
  EXPECT_EQ(calls_of({by_host({4, 2})}, 5, 12), (CallLog{"reduce-scatter of 2 among 6", "all-gather of 2 among 6"}));
}

TEST(HierarchicalNcclTest, BroadcastReachesItsMembersAlone) {
  OnGpus{by_host({2, 2})}.run([](HierarchicalNccl& levels, Communicator& comm, CallLog&) {
    int32_t value = comm.rank();
    const std::vector<int> members{3, 0, 2};
    if (comm.rank() != 1) levels.broadcast(&value, sizeof value, 2, members);
    EXPECT_EQ(value, comm.rank() == 1 ? 1 : 2);
    const std::vector<int> everyone{0, 1, 2, 3};
    levels.broadcast(&value, sizeof value, 1, everyone);
    EXPECT_EQ(value, 1);
  });
}

/// Returns the message of every rank's CommError. Ranks that finish the first reduction learn of the failure in a
/// second one. The second one begins when the other ranks have failed, because otherwise its own deadline could end
/// first.
std::vector<std::string> errors_of(const OnGpus& world) {
  std::vector<std::string> errors(world.hosts.size());
  std::latch first(static_cast<std::ptrdiff_t>(world.hosts.size()));
  world.run([&](HierarchicalNccl& levels, Communicator& comm, CallLog&) {
    std::string& error = errors[static_cast<size_t>(comm.rank())];
    const auto reduce = [&] {
      std::vector<float> data(12);
      try {
        levels.reduce_scatter(data.data(), 12, Element::float32, Reduction::sum);
        levels.all_gather(data.data(), 12, Element::float32);
      } catch (const CommError& failure) {
        error = failure.what();
      }
    };
    reduce();
    first.arrive_and_wait();
    if (error.empty()) reduce();
  });
  return errors;
}

TEST(HierarchicalNcclTest, AGpuThatFailsIsACommErrorOnEveryRankWithLevelAndStage) {
  for (const auto& error : errors_of({.hosts = by_host({3, 3}), .fault = [](int rank) {
                                        return rank == 4 ? GpuFault{"reduce-scatter of 2 among 2"} : GpuFault();
                                      }})) {
    EXPECT_NE(error.find("unhandled card error"), std::string::npos) << error;
    EXPECT_NE(error.find("level 2 of 2, reduce-scatter, stage 2"), std::string::npos) << error;
  }
}

TEST(HierarchicalNcclTest, AGpuThatNeverEndsIsACommErrorOnEveryRankAfterTheDeadline) {
  const auto errors =
      errors_of({.hosts = by_host({3, 3}), .options = {.deadline = std::chrono::seconds(1)}, .fault = [](int rank) {
                   return rank == 1 ? GpuFault{"all-gather of 4 among 3", /*stuck=*/true} : GpuFault();
                 }});
  for (const auto& error : errors)
    EXPECT_NE(error.find("no end within 1 s (level 1 of 2, all-gather, stage 4)"), std::string::npos) << error;
}

TEST(HierarchicalNcclTest, ARankThatDoesNotComeIsNamed) {
  OnGpus world{.hosts = by_host({2}), .options = {.deadline = std::chrono::milliseconds(200)}};
  world.run([](HierarchicalNccl& levels, Communicator& comm, CallLog&) {
    if (comm.rank() == 1) return std::this_thread::sleep_for(std::chrono::seconds(2));
    std::vector<float> data(2);
    try {
      levels.reduce_scatter(data.data(), 2, Element::float32, Reduction::sum);
      ADD_FAILURE() << "nobody was missing";
    } catch (const CommError& error) {
      EXPECT_NE(std::string(error.what()).find("silent: rank 1"), std::string::npos) << error.what();
    }
    EXPECT_TRUE(comm.dead());
  });
}

}  // namespace
}  // namespace spillway::ddl
