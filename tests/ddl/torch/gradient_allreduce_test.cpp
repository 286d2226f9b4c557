#include "ddl/torch/gradient_allreduce.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <mutex>
#include <thread>

#include "core/error.h"
#include "core/trace_events.h"
#include "ddl/comm/thread_world.h"
#include "tests/support/ddl/delayed_transport.h"
#include "tests/support/ddl/shapes.h"

namespace spillway::ddl {
namespace {

using namespace std::chrono_literals;
using testing::by_host;
using testing::dealt;

/// Plays `body` on each rank. Its messages are late by random times.
void on_ranks(const std::vector<int>& hosts, const std::function<void(const Comm&)>& body) {
  ThreadWorld world(hosts);
  std::vector<std::thread> threads;
  std::mutex mutex;
  for (int rank = 0; rank < world.size(); ++rank)
    threads.emplace_back([&, rank] {
      auto transport = std::make_unique<testing::DelayedTransport>(world.transport(rank), 17u * rank + 3);
      const Comm comm = make_comm(std::make_shared<Communicator>(std::move(transport), CommOptions{.deadline = 20s}));
      try {
        body(comm);
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  for (auto& thread : threads) thread.join();
}

/// Returns small whole numbers, of which float64 makes exact sums and products.
at::Tensor numbers(at::IntArrayRef sizes, int64_t seed) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return (at::arange(count, at::kDouble).mul(7).add(seed).remainder(11) - 5).reshape(sizes);
}

/// A network of two layers and a third one that few cases reach.
struct Net {
  std::vector<at::Tensor> parameters;
  Net() {
    for (const auto& sizes : std::vector<std::vector<int64_t>>{{12, 6}, {12}, {4, 12}, {4}, {6, 6}})
      parameters.push_back(numbers(sizes, static_cast<int64_t>(parameters.size())).set_requires_grad(true));
  }
  /// Returns the mean of each case's loss over the batch, whose size is a power of two.
  at::Tensor loss(at::Tensor batch, bool detour = false) const {
    const int64_t size = batch.size(0);
    if (detour) batch = at::relu(at::linear(batch, parameters[4]));
    const at::Tensor hidden = at::relu(at::linear(batch, parameters[0], parameters[1]));
    return at::linear(hidden, parameters[2], parameters[3]).square().sum() / size;
  }
};

void expect_equal(const Net& net, const Net& expected) {
  for (size_t i = 0; i < net.parameters.size(); ++i) {
    const at::Tensor &mine = net.parameters[i].grad(), &theirs = expected.parameters[i].grad();
    ASSERT_EQ(mine.defined(), theirs.defined()) << "parameter " << i;
    EXPECT_TRUE(!mine.defined() || at::equal(mine, theirs)) << "parameter " << i;
  }
}

constexpr int64_t kCases = 4;  // cases of one rank

at::Tensor batch_of(int64_t rank, int64_t step) {
  return numbers({kCases, 6}, 5 * rank + step);
}

at::Tensor batch_of_all(int64_t ranks, int64_t step) {
  std::vector<at::Tensor> all;
  for (int64_t rank = 0; rank < ranks; ++rank) all.push_back(batch_of(rank, step));
  return at::cat(all);
}

}  // namespace

TEST(GradientAllreduceTest, EqualsASingleRankOnTheConcatenatedBatchExactly) {
  for (const auto& hosts : {by_host({1}), by_host({2}), by_host({2, 2}), dealt({4, 4})})
    for (const int64_t bucket_bytes : {1024, 1 << 20})
      on_ranks(hosts, [&](const Comm& comm) {
        const int rank = comm->communicator->rank(), ranks = comm->communicator->size();
        Net net;
        GradientAllreduce gradients(net.parameters, comm, {.bucket_bytes = bucket_bytes});
        for (int64_t step = 0; step < 3; ++step) {
          for (const at::Tensor& parameter : net.parameters) parameter.mutable_grad().reset();
          gradients.begin();
          net.loss(batch_of(rank, step)).backward();
          gradients.finish();
          Net alone;
          alone.loss(batch_of_all(ranks, step)).backward();
          expect_equal(net, alone);
        }
        EXPECT_EQ(gradients.totals().steps, 3);
        EXPECT_LE(gradients.totals().exposed.count(), 20'000'000'000);
        EXPECT_GT(gradients.totals().bytes, 3 * 8 * (12 * 6 + 12 + 4 * 12 + 4 + 6 * 6));
      });
}

TEST(GradientAllreduceTest, TellsItsObserverOfEachBucketInOrder) {
  struct Job {
    SteadyTime start, end;
    int64_t bytes;
  };
  on_ranks(by_host({2}), [&](const Comm& comm) {
    Net net;
    std::vector<Job> jobs;  // the queue's thread adds to it, and finish() comes after that
    GradientAllreduce gradients(net.parameters, comm, {.bucket_bytes = 1024});
    gradients.observe([&](SteadyTime start, SteadyTime end, int64_t bytes) { jobs.push_back({start, end, bytes}); });
    constexpr int kSteps = 3;
    for (int64_t step = 0; step < kSteps; ++step) {
      const SteadyTime began = std::chrono::steady_clock::now();
      const size_t before = jobs.size();
      gradients.begin();
      net.loss(batch_of(comm->communicator->rank(), step)).backward();
      gradients.finish();
      for (size_t i = before; i < jobs.size(); ++i) EXPECT_GE(jobs[i].start, began);
    }
    ASSERT_EQ(static_cast<int64_t>(jobs.size()), kSteps * gradients.buckets());
    std::chrono::nanoseconds busy{};
    int64_t bytes = 0;
    for (size_t i = 0; i < jobs.size(); ++i) {
      EXPECT_GE(jobs[i].end, jobs[i].start);
      if (i > 0) {
        EXPECT_GE(jobs[i].start, jobs[i - 1].end) << "a queue runs one job at a time";
      }
      busy += jobs[i].end - jobs[i].start;
      bytes += jobs[i].bytes;
    }
    EXPECT_EQ(busy, gradients.totals().busy);
    EXPECT_EQ(bytes, gradients.totals().bytes);
  });
}

TEST(GradientAllreduceTest, GivesTheBitsOfTheOperatorWhateverTheBucketsAndTheMemory) {
  for (const int64_t max_in_flight_bytes : {kWhole, int64_t{0}, int64_t{3000}})
    on_ranks(by_host({3, 2}), [&](const Comm& comm) {
      at::Tensor weight = at::zeros({900}).set_requires_grad(true), bias = at::zeros({7}).set_requires_grad(true);
      std::vector<at::Tensor> expected;
      for (const int64_t bucket_bytes : {1024, 1280, 100'000}) {
        GradientAllreduce gradients({weight, bias}, comm,
                                    {.bucket_bytes = bucket_bytes, .max_in_flight_bytes = max_in_flight_bytes});
        for (int step = 0; step < 2; ++step) {
          weight.mutable_grad().reset(), bias.mutable_grad().reset();
          gradients.begin();
          const at::Tensor slope = 1 / (at::arange(900, at::kFloat) + 3 * comm->communicator->rank() + 1);
          ((weight * slope).sum() + (bias * slope.narrow(0, 0, 7)).sum()).backward();
          gradients.finish();
          if (expected.empty()) {
            expected = {slope.clone(), slope.narrow(0, 0, 7).clone()};
            allreduce_(expected, comm, Reduction::average);
          }
          EXPECT_TRUE(at::equal(weight.grad(), expected[0]));
          EXPECT_TRUE(at::equal(bias.grad(), expected[1]));
        }
      }
    });
}

TEST(GradientAllreduceTest, BackwardsWithoutBeginAccumulateOnTheirRank) {
  on_ranks(by_host({2, 2}), [](const Comm& comm) {
    const int rank = comm->communicator->rank();
    Net net;
    GradientAllreduce gradients(net.parameters, comm, {.bucket_bytes = 1024});
    for (int64_t step = 0; step < 2; ++step) {
      for (const at::Tensor& parameter : net.parameters) parameter.mutable_grad().reset();
      // The first backward reaches a parameter that the last does not reach.
      net.loss(batch_of(rank, step), /*detour=*/true).backward();
      net.loss(batch_of(rank, step + 10)).backward();
      gradients.begin();
      net.loss(batch_of(rank, step + 20)).backward();
      gradients.finish();
      Net alone;
      alone.loss(batch_of_all(4, step), true).backward();
      alone.loss(batch_of_all(4, step + 10)).backward();
      alone.loss(batch_of_all(4, step + 20)).backward();
      expect_equal(net, alone);
    }
  });
}

TEST(GradientAllreduceTest, AGradientThatSomeRanksMissCountsAsZeroThereAndIsMade) {
  for (const int64_t bucket_bytes : {1024, 1 << 20})
    on_ranks(by_host({2, 2}), [&](const Comm& comm) {
      const int rank = comm->communicator->rank();
      Net net;
      GradientAllreduce gradients(net.parameters, comm, {.bucket_bytes = bucket_bytes});
      for (int64_t step = 0; step < 4; ++step) {
        for (const at::Tensor& parameter : net.parameters) parameter.mutable_grad().reset();
        // The detour is taken by no rank, by one rank, by the first rank, and by all ranks but one.
        const auto takes_detour = [&](int64_t r) {
          return step == 1 ? r == 2 : step == 2 ? r == 0 : step == 3 && r > 0;
        };
        gradients.begin();
        net.loss(batch_of(rank, step), takes_detour(rank)).backward();
        gradients.finish();
        Net alone;
        for (int64_t r = 0; r < 4; ++r) (alone.loss(batch_of(r, step), takes_detour(r)) / 4).backward();
        expect_equal(net, alone);
        EXPECT_EQ(net.parameters[4].grad().defined(), step > 0);
      }
    });
}

TEST(GradientAllreduceTest, RanksMayCompleteGradientsInOtherOrders) {
  on_ranks(by_host({3}), [](const Comm& comm) {
    std::vector<at::Tensor> parameters;
    for (int i = 0; i < 6; ++i) parameters.push_back(at::full({300}, i, at::kDouble).set_requires_grad(true));
    GradientAllreduce gradients(parameters, comm, {.bucket_bytes = 1024, .reduction = Reduction::sum});
    for (int step = 0; step < 3; ++step) {
      for (const at::Tensor& parameter : parameters) parameter.mutable_grad().reset();
      at::Tensor chain = at::ones({300}, at::kDouble);
      for (int i = 0; i < 6; ++i) chain = chain + (i + 1) * parameters[(i + step + 2 * comm->communicator->rank()) % 6];
      gradients.begin();
      chain.sum().backward();
      gradients.finish();
      for (int p = 0; p < 6; ++p) {
        double expected = 0;
        for (int rank = 0; rank < 3; ++rank) expected += (p - step - 2 * rank + 12) % 6 + 1;
        EXPECT_TRUE(at::equal(parameters[p].grad(), at::full({300}, expected, at::kDouble)));
      }
    }
  });
}

TEST(GradientAllreduceTest, TypesAndLayoutsMayBeMixed) {
  on_ranks(by_host({2}), [](const Comm& comm) {
    const double own = comm->communicator->rank() + 1;
    std::vector<at::Tensor> parameters{
        at::ones({3, 2, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast).set_requires_grad(true),
        at::ones({5}, at::kDouble).set_requires_grad(true), at::ones({33}, at::kBFloat16).set_requires_grad(true),
        at::ones({7}).set_requires_grad(false), at::ones({0}).set_requires_grad(true)};
    GradientAllreduce gradients(parameters, comm, {.bucket_bytes = 1024});
    const at::Tensor slope = at::arange(96).reshape({3, 2, 4, 4});
    gradients.begin();
    ((parameters[0] * slope).sum() * own + (parameters[1] * own).sum() + (parameters[2] * own).sum() +
     parameters[4].sum())
        .backward();
    gradients.finish();
    EXPECT_TRUE(at::equal(parameters[0].grad(), slope * 1.5));
    EXPECT_TRUE(at::equal(parameters[1].grad(), at::full({5}, 1.5, at::kDouble)));
    EXPECT_TRUE(at::equal(parameters[2].grad(), at::full({33}, 1.5, at::kBFloat16)));
    EXPECT_FALSE(parameters[3].grad().defined());
  });
}

TEST(GradientAllreduceTest, AGradientUnderWayIsItsMessageAlone) {
  const Comm comm = make_comm(ThreadWorld({0}).communicator(0));
  for (const int64_t max_in_flight_bytes : {kWhole, int64_t{0}}) {
    std::vector<at::Tensor> parameters;
    for (int i = 0; i < 4; ++i) parameters.push_back(at::ones({512}).set_requires_grad(true));
    GradientAllreduce gradients(parameters, comm, {.bucket_bytes = 1024, .max_in_flight_bytes = max_in_flight_bytes});
    gradients.begin();
    const at::Tensor slope = at::arange(512, at::kFloat);
    (parameters[0] * slope + parameters[1] * 2 + parameters[2] * 3 + parameters[3] * 4).sum().backward();
    int64_t held = 0;
    for (const at::Tensor& parameter : parameters) held += parameter.grad().defined();
    // Each gradient goes through two buckets, and the last bucket waits for finish(). Without memory in flight, results
    // come back at once.
    EXPECT_EQ(held, max_in_flight_bytes == 0 ? 4 : 1);
    gradients.finish();
    EXPECT_TRUE(at::equal(parameters[0].grad(), slope));
    for (int i = 1; i < 4; ++i) EXPECT_TRUE(at::equal(parameters[i].grad(), at::full({512}, i + 1.0f)));
  }
}

TEST(GradientAllreduceTest, MisuseIsRefused) {
  const Comm comm = make_comm(ThreadWorld({0}).communicator(0));
  Net net;
  EXPECT_THROW(GradientAllreduce(net.parameters, comm, {.bucket_bytes = 1000}), BadRequest);
  EXPECT_THROW(GradientAllreduce(net.parameters, comm, {.max_in_flight_bytes = -1}), BadRequest);
  EXPECT_THROW(GradientAllreduce(net.parameters, comm, {.reduction = Reduction::maximum}), BadRequest);
  EXPECT_THROW(GradientAllreduce({at::ones({3}, at::kChar)}, comm), c10::Error);
  GradientAllreduce gradients(net.parameters, comm);
  EXPECT_THROW(gradients.finish(), c10::Error);
  gradients.begin();
  EXPECT_THROW(gradients.begin(), c10::Error);
  net.loss(batch_of(0, 0)).backward();
  EXPECT_THROW(net.loss(batch_of(0, 0)).backward(), c10::Error);
}

TEST(GradientAllreduceTest, WhatOneRankCannotReduceIsRefusedOnAllOfThem) {
  on_ranks(by_host({3}), [](const Comm& comm) {
    const int rank = comm->communicator->rank();
    const std::vector<at::Tensor> parameters{at::ones({3}, rank == 1 ? at::kChar : at::kFloat)};
    if (rank == 1)
      EXPECT_THROW(GradientAllreduce(parameters, comm), c10::Error);
    else
      EXPECT_THROW(GradientAllreduce(parameters, comm), BadRequest);
  });
}

/// Checks parameters that are given twice, as a C++ module lists a parameter that two of its submodules have
/// registered.
TEST(GradientAllreduceTest, AParameterThatIsGivenTwiceIsReducedOnce) {
  for (const int64_t bucket_bytes : {1024, 1 << 20})
    on_ranks(by_host({3}), [&](const Comm& comm) {
      const int rank = comm->communicator->rank();
      Net net, other;
      auto twice = net.parameters;
      twice.insert(twice.end(), net.parameters.begin(), net.parameters.end());
      GradientAllreduce gradients(twice, comm, {.bucket_bytes = bucket_bytes});
      for (int step = 0; step < 2; ++step) {
        gradients.begin();
        net.loss(batch_of(rank, step), true).backward();
        gradients.finish();
        other.loss(batch_of(rank, step), true).backward();
        std::vector<at::Tensor> expected;
        for (const at::Tensor& parameter : other.parameters) expected.push_back(parameter.grad());
        allreduce_(expected, comm, Reduction::average);
        expect_equal(net, other);
        for (Net* each : {&net, &other})
          for (at::Tensor& parameter : each->parameters) parameter.mutable_grad().reset();
      }
    });
}

TEST(GradientAllreduceTest, AParameterOutlivesIt) {
  const Comm comm = make_comm(ThreadWorld({0}).communicator(0));
  Net net;
  { GradientAllreduce gradients(net.parameters, comm); }
  net.loss(batch_of(0, 0)).backward();
  Net alone;
  alone.loss(batch_of(0, 0)).backward();
  expect_equal(net, alone);
}

TEST(GradientAllreduceTest, ARankThatLeavesInTheMiddleEndsTheStepEverywhere) {
  on_ranks(by_host({3}), [](const Comm& comm) {
    Net net;
    GradientAllreduce gradients(net.parameters, comm, {.bucket_bytes = 1024});
    gradients.begin();
    net.loss(batch_of(comm->communicator->rank(), 0)).backward();
    if (comm->communicator->rank() == 1) return;
    EXPECT_THROW(gradients.finish(), CommError);
  });
}

TEST(GradientAllreduceTest, RanksWithOtherParametersAreTold) {
  on_ranks(by_host({3}), [](const Comm& comm) {
    const int rank = comm->communicator->rank();
    at::Tensor parameter = at::ones(rank == 2 ? at::IntArrayRef{2, 3} : at::IntArrayRef{3, 2}).set_requires_grad(true);
    GradientAllreduce gradients({parameter}, comm);
    gradients.begin();
    parameter.sum().backward();
    try {
      gradients.finish();
      ADD_FAILURE() << "rank " << rank << " saw no error";
    } catch (const CommError& error) {
      EXPECT_NE(std::string(error.what()).find("the ranks disagree"), std::string::npos) << error.what();
    }
  });
}

}  // namespace spillway::ddl
