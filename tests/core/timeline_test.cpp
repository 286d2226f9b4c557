#include "core/timeline.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <thread>
#include <vector>

#include "core/strided_runs.h"
#include "tests/support/copies.h"
#include "tests/support/streams.h"
#include "tests/support/timeline_conformance.h"

namespace spillway {
namespace testing {

struct WorkerTimelines {
  static std::unique_ptr<Timeline> make() { return std::make_unique<WorkerTimeline>("test"); }
};
struct DelayedTimelines {
  static std::unique_ptr<Timeline> make() {
    return std::make_unique<DelayedTimeline>(5, std::chrono::microseconds(300));
  }
};
struct RandomTimelines {
  static std::unique_ptr<Timeline> make() {
    return std::make_unique<RandomTimeline>(5, std::chrono::microseconds(300));
  }
};
struct SameThreadTimelines {
  static std::unique_ptr<Timeline> make() { return std::make_unique<SameThreadTimeline>(); }
};
struct StreamTimelines {
  static std::unique_ptr<Timeline> make() {
    return std::make_unique<StreamTimeline>(std::make_shared<ComputeQueue>(5), 5);
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Stream, TimelineConformanceTest, StreamTimelines);
INSTANTIATE_TYPED_TEST_SUITE_P(Worker, TimelineConformanceTest, WorkerTimelines);
INSTANTIATE_TYPED_TEST_SUITE_P(Delayed, TimelineConformanceTest, DelayedTimelines);
INSTANTIATE_TYPED_TEST_SUITE_P(Random, TimelineConformanceTest, RandomTimelines);
INSTANTIATE_TYPED_TEST_SUITE_P(SameThread, TimelineConformanceTest, SameThreadTimelines);

}  // namespace testing

TEST(TimelineTest, RunsWorkInTheOrderOfSubmission) {
  WorkerTimeline timeline("test");
  std::vector<int> order;
  Ticket last;
  for (int i = 0; i < 100; ++i) last = timeline.submit([&order, i] { order.push_back(i); });
  last.wait();
  std::vector<int> expected(100);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
}

TEST(StridedRunsTest, CountsTheRunsThatLieWholeWithinABlock) {
  EXPECT_EQ(runs_within(/*bytes=*/99, /*run_bytes=*/100, /*stride=*/300), 0);
  EXPECT_EQ(runs_within(100, 100, 300), 1);
  EXPECT_EQ(runs_within(399, 100, 300), 1);
  EXPECT_EQ(runs_within(400, 100, 300), 2);
  EXPECT_EQ(runs_within(1000, 100, 100), 10);
}

TEST(TimelineTest, CopiesBytesAndReportsThem) {
  std::atomic<int64_t> seen = 0;
  std::vector<char> from(1000, 'x'), to(1000);
  {
    WorkerTimeline timeline("test", [&](auto, auto, int64_t bytes) { seen += bytes; });
    Ticket ticket = timeline.copy(to.data(), from.data(), 1000);
    ticket.wait();
    EXPECT_TRUE(ticket.done());
  }
  EXPECT_EQ(to, from);
  EXPECT_EQ(seen, 1000);
}

TEST(TimelineTest, ThrowsTheWorksErrorAtEveryWaitAndGoesOn) {
  WorkerTimeline timeline("test");
  Ticket bad = timeline.submit([] { throw std::runtime_error("broken copy"); });
  Ticket good = timeline.submit([] {});
  EXPECT_THROW(bad.wait(), std::runtime_error);
  EXPECT_THROW(bad.wait(), std::runtime_error);
  EXPECT_NO_THROW(good.wait());
}

TEST(TimelineTest, FinishesWhatWasSubmittedBeforeItEnds) {
  std::atomic<int> done = 0;
  {
    WorkerTimeline timeline("test");
    for (int i = 0; i < 50; ++i) (void)timeline.submit([&] { ++done; });
  }
  EXPECT_EQ(done, 50);
}

TEST(TimelineTest, AnEmptyTicketIsComplete) {
  Ticket ticket;
  EXPECT_TRUE(ticket.done());
  EXPECT_NO_THROW(ticket.wait());
}

TEST(TimelineTest, JoiningWorkOfTheHostWaitsForItAndThrowsItsError) {
  TicketSource source;
  Ticket ticket = source.ticket();
  EXPECT_FALSE(ticket.can_order_without_wait());
  std::thread other([&] { source.complete(std::make_exception_ptr(std::runtime_error("broken copy"))); });
  EXPECT_THROW(ticket.order_compute_after(), std::runtime_error);
  other.join();
  EXPECT_TRUE(ticket.can_order_without_wait());
}

/// Device work that ends, or fails, when the test tells it to.
struct ToldWork final : QueuedWork {
  bool done() override {
    if (fails) throw std::runtime_error("the device failed");
    return ended;
  }
  void wait() override { (void)done(); }
  void order_compute_after() override { ++joins; }
  bool ended = false, fails = false;
  int joins = 0;
};

TEST(TimelineTest, JoiningADevicesWorkOrdersComputeAndDoesNotWait) {
  auto work = std::make_shared<ToldWork>();
  Ticket ticket(work);
  EXPECT_TRUE(ticket.can_order_without_wait());
  EXPECT_FALSE(ticket.done());
  ticket.order_compute_after();
  EXPECT_EQ(work->joins, 1);
  EXPECT_FALSE(ticket.done());
  work->ended = true;
  EXPECT_TRUE(ticket.succeeded());
}

TEST(TimelineTest, ADevicesFailureIsFoundByAskingAndThrownAtEveryWait) {
  auto work = std::make_shared<ToldWork>();
  Ticket ticket(work);
  work->fails = true;
  EXPECT_TRUE(ticket.done());
  EXPECT_FALSE(ticket.succeeded());
  EXPECT_THROW(ticket.wait(), std::runtime_error);
  EXPECT_THROW(ticket.wait(), std::runtime_error);
  EXPECT_THROW(ticket.order_compute_after(), std::runtime_error);
}

TEST(TimelineTest, WorkThatGoesOnOnADeviceCanBeJoinedOnceItIsThere) {
  auto work = std::make_shared<ToldWork>();
  TicketSource first;
  Ticket ticket = first.ticket();
  EXPECT_FALSE(ticket.can_order_without_wait());
  first.chain_to(Ticket(work));
  EXPECT_TRUE(ticket.can_order_without_wait());
  ticket.order_compute_after();
  EXPECT_EQ(work->joins, 1);
  EXPECT_FALSE(ticket.done());
}

TEST(TimelineTest, ATicketThatGoesOnIsCompleteWithItsRestAndHasItsError) {
  TicketSource first, rest, last;
  Ticket ticket = first.ticket();
  first.chain_to(rest.ticket());
  EXPECT_FALSE(ticket.done());
  rest.chain_to(last.ticket());
  EXPECT_FALSE(ticket.done());
  EXPECT_FALSE(ticket.succeeded());
  std::thread other([&] { last.complete(std::make_exception_ptr(std::runtime_error("at the end"))); });
  EXPECT_THROW(ticket.wait(), std::runtime_error);
  other.join();
  EXPECT_TRUE(ticket.done());
  EXPECT_FALSE(ticket.succeeded());
  TicketSource short_work;
  short_work.chain_to({});
  EXPECT_TRUE(short_work.ticket().succeeded());
}

}  // namespace spillway
