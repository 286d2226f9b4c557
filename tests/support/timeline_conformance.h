// The conformance suite that every Timeline must pass. A new backend gets the whole suite in three lines:
//     struct MyTimelines { static std::unique_ptr<Timeline> make() { … } };
//     INSTANTIATE_TYPED_TEST_SUITE_P(Mine, TimelineConformanceTest, MyTimelines);
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "core/strided_runs.h"
#include "core/timeline.h"

namespace spillway::testing {

template <class Backend>
struct TimelineConformanceTest : ::testing::Test {
  /// Skips the test when make() returns nothing, because the backend is not there.
  void SetUp() override {
    if (!timeline) GTEST_SKIP() << "no such device here";
  }
  std::unique_ptr<Timeline> timeline = Backend::make();
};
TYPED_TEST_SUITE_P(TimelineConformanceTest);

TYPED_TEST_P(TimelineConformanceTest, CopiesEveryByteByTheTimeTheTicketIsDone) {
  for (size_t bytes : {size_t{1}, size_t{63}, size_t{4097}, size_t{3'000'001}}) {
    std::vector<char> from(bytes, 'x'), to(bytes + 1, 'o');
    Ticket ticket = this->timeline->copy(to.data(), from.data(), static_cast<int64_t>(bytes));
    ticket.wait();
    EXPECT_TRUE(ticket.done());
    EXPECT_TRUE(ticket.succeeded());
    EXPECT_EQ(std::vector<char>(to.begin(), to.end() - 1), from);
    EXPECT_EQ(to.back(), 'o');
  }
}

TYPED_TEST_P(TimelineConformanceTest, CopiesRunsAtRegularDistancesAndNothingBetweenThem) {
  const auto at = [](char* data, int64_t offset) { return data + offset; };
  for (const StridedRuns& runs : std::vector<StridedRuns>{{.run_bytes = 5},
                                                          {.run_bytes = 1, .dimensions = {{7, 3, 2}}},
                                                          {.run_bytes = 64, .dimensions = {{9, 64, 100}}},
                                                          {.run_bytes = 16, .dimensions = {{3, 16, 0}}},  // one source
                                                          {.run_bytes = 10, .dimensions = {{2, 900, 70}, {4, 13, 500}}},
                                                          {.run_bytes = 8, .dimensions = {{0, 8, 8}}}}) {
    std::vector<char> from(4000), to(4000, 'o');
    for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<char>(i % 101);
    std::vector<char> expected = to;
    runs.for_each_run(
        [&](int64_t d, int64_t s) { std::copy_n(at(from.data(), s), runs.run_bytes, at(expected.data(), d)); });
    Ticket ticket = this->timeline->copy_runs(to.data(), from.data(), runs);
    ticket.wait();
    EXPECT_TRUE(ticket.succeeded());
    EXPECT_EQ(to, expected);
  }
}

TYPED_TEST_P(TimelineConformanceTest, RunsCopiesInTheOrderOfSubmission) {
  // The copies are a chain: each buffer gets the one before it. So any other order leaves an old value somewhere.
  std::vector<std::vector<int>> buffers(50, std::vector<int>(1000, 0));
  buffers[0].assign(1000, 42);
  Ticket last;
  for (size_t i = 1; i < buffers.size(); ++i)
    last = this->timeline->copy(buffers[i].data(), buffers[i - 1].data(), 1000 * sizeof(int));
  last.wait();
  EXPECT_EQ(buffers.back(), buffers.front());
}

TYPED_TEST_P(TimelineConformanceTest, FinishesWhatWasSubmittedBeforeItEnds) {
  std::vector<int> from(1000, 7), to(1000, 0);
  Ticket ticket = this->timeline->copy(to.data(), from.data(), 1000 * sizeof(int));
  this->timeline.reset();
  EXPECT_TRUE(ticket.done());
  EXPECT_EQ(to, from);
}

REGISTER_TYPED_TEST_SUITE_P(TimelineConformanceTest, CopiesEveryByteByTheTimeTheTicketIsDone,
                            CopiesRunsAtRegularDistancesAndNothingBetweenThem, RunsCopiesInTheOrderOfSubmission,
                            FinishesWhatWasSubmittedBeforeItEnds);

}  // namespace spillway::testing
