#include "ddl/allreduce/tuned_allreduce.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "ddl/comm/thread_world.h"
#include "tests/support/ddl/shapes.h"

namespace spillway::ddl {
namespace {

using testing::by_host;

Costs two_levels() {
  return {.levels = {{1e-6, 1e-7, 1e10}, {50e-6, 5e-6, 25e6, 60 << 10}}, .reduce_seconds_per_byte = 1e-10};
}

void on_ranks(const std::vector<int>& hosts, const std::function<void(Communicator&)>& body) {
  ThreadWorld world(hosts);
  run_ranks(world, body);
}

TEST(TunedAllreduceTest, WithoutCostsEverySizeGoesDirect) {
  on_ranks(by_host({2, 2}), [](Communicator& comm) {
    TunedAllreduce tuned(comm);
    EXPECT_EQ(tuned.for_bytes(1).plan().name(), "direct x direct");
    EXPECT_EQ(&tuned.for_bytes(1), &tuned.for_bytes(int64_t{1} << 40));
    EXPECT_EQ(tuned.bucket_bytes(), int64_t{4} << 20);
  });
}

TEST(TunedAllreduceTest, SizesHavePlansOfTheirOwnThatKeepTheOrder) {
  on_ranks(by_host({4, 4, 4}), [](Communicator& comm) {
    TunedAllreduce tuned(comm, two_levels());
    for (int64_t bytes = 1; bytes < int64_t{1} << 34; bytes *= 7) {
      EXPECT_TRUE(tuned.for_bytes(bytes).plan().keeps_order());
      EXPECT_EQ(&tuned.for_bytes(bytes), &tuned.for_bytes(bytes));
    }
    // For few bytes, one round is best. For many bytes, the plan that sends the fewest bytes is best.
    EXPECT_EQ(tuned.for_bytes(64).plan().algorithms().back(), Algorithm::oneshot);
    EXPECT_EQ(tuned.for_bytes(1 << 26).plan().name(), "direct x direct");
  });
}

TEST(TunedAllreduceTest, AChoiceIsMadeOnce) {
  on_ranks(by_host({4, 4}), [](Communicator& comm) {
    TunedAllreduce tuned(comm, two_levels());
    EXPECT_EQ(&tuned.choice(1000), &tuned.choice(1024));
    EXPECT_EQ(tuned.segment_bytes(), tuned.choice(1 << 20).options.segment_bytes);
    EXPECT_EQ(TunedAllreduce(comm).segment_bytes(), std::vector<int64_t>());
  });
}

/// Costs of links that differ by orders of magnitude, as a busy and a quiet machine's do.
std::vector<Costs> measured_now_and_then() {
  std::vector<Costs> all;
  for (const double latency : {1e-7, 1e-5, 1e-3})
    for (const double rate : {1e7, 1e9, 1e11})
      for (const double adding : {1e-12, 1e-9})
        all.push_back(
            {.levels = {{1e-6, 1e-8, 1e10}, {latency, latency / 10, rate}}, .reduce_seconds_per_byte = adding});
  return all;
}

TEST(TunedAllreduceTest, ScratchIsEnoughForEveryChoiceAndDependsOnNoRate) {
  for (const auto& hosts : {by_host({2, 2}), by_host({4, 2}), by_host({1, 1, 1})})
    on_ranks(hosts, [](Communicator& comm) {
      std::set<std::pair<std::string, int64_t>> chosen;
      for (int64_t bytes = 64; bytes <= int64_t{16} << 20; bytes *= 8)
        for (const Element element : {Element::float32, Element::bfloat16}) {
          const int64_t count = bytes / element_bytes(element) - 3;
          std::set<int64_t> scratch;
          for (Costs costs : measured_now_and_then()) {
            costs.levels.resize(comm.levels().count());
            TunedAllreduce tuned(comm, costs);
            scratch.insert(tuned.scratch_bytes(bytes, count, element));
            EXPECT_EQ(tuned.scratch_bytes(bytes, count, element), *scratch.rbegin());
            EXPECT_LE(tuned.for_bytes(bytes).scratch_bytes(count, element), *scratch.begin());
            chosen.emplace(tuned.choice(bytes).plan.name(), tuned.choice(bytes).options.chunk_bytes);
          }
          EXPECT_EQ(scratch.size(), 1U) << bytes;
        }
      EXPECT_GE(chosen.size(), 3U) << "rates choose";
    });
}

TEST(TunedAllreduceTest, ScratchIsThatOfFewChunks) {
  on_ranks(by_host({4, 4}), [](Communicator& comm) {
    TunedAllreduce tuned(comm, two_levels());
    EXPECT_LE(tuned.scratch_bytes(1 << 30, 1 << 28, Element::float32), int64_t{8} << 20);
    EXPECT_LE(tuned.scratch_bytes(1 << 20, 1 << 18, Element::float32), int64_t{1} << 20) << "no more than the vector";
    EXPECT_LE(tuned.scratch_bytes(1 << 10, 1 << 8, Element::float32), 3 << 10) << "three members' vectors";
  });
}

TEST(TunedAllreduceTest, AnElementsBitsDependOnNoSize) {
  on_ranks(by_host({3, 2}), [](Communicator& comm) {
    TunedAllreduce tuned(comm, two_levels());
    const auto sum = [&](size_t count) {
      std::vector<float> data(count);
      for (size_t k = 0; k < count; ++k) data[k] = 1.0f / static_cast<float>(3 * k + 7 * comm.rank() + 1);
      tuned.for_bytes(static_cast<int64_t>(4 * count)).reduce(data, Reduction::average);
      return data;
    };
    const auto few = sum(3), many = sum(200'000);
    EXPECT_NE(tuned.for_bytes(12).plan().name(), tuned.for_bytes(800'000).plan().name());
    EXPECT_EQ(few, std::vector(many.begin(), many.begin() + 3));  // none is 0 or NaN, so equal values have equal bits
  });
}

TEST(TunedAllreduceTest, SlowMessagesMakeLargeBuckets) {
  on_ranks(by_host({1, 1}), [](Communicator& comm) {
    const auto bucket = [&](double latency) {
      return TunedAllreduce(comm, Costs{.levels = {{latency, 0, 1e9}}, .reduce_seconds_per_byte = 1e-11})
          .bucket_bytes();
    };
    EXPECT_EQ(bucket(1e-7), int64_t{1} << 20);
    EXPECT_GT(bucket(1e-3), int64_t{1} << 20);
    EXPECT_LE(bucket(1), int64_t{32} << 20);
  });
}

TEST(TunedAllreduceTest, CostsOfAnotherTreeAreRefused) {
  on_ranks({0, 0}, [](Communicator& comm) { EXPECT_THROW(TunedAllreduce(comm, two_levels()), BadRequest); });
}

}  // namespace
}  // namespace spillway::ddl
