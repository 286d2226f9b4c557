// Several Sessions in one process: side by side on threads, and one after another.
#include <gtest/gtest.h>

#include <exception>
#include <thread>

#include "core/cpu_allocator.h"
#include "core/error.h"
#include "tests/support/checking_observers.h"
#include "tests/support/copies.h"
#include "tests/support/small_training.h"

namespace spillway {
namespace {

using testing::DelayedTimeline;
using testing::EvictEverything;
using testing::expect_same;
using testing::train;
using testing::Trained;
using testing::Training;

const Training kOne{.seed = 1, .channels = 8, .edge = 24, .steps = 5};
const Training kOther{.seed = 2, .channels = 12, .edge = 20, .steps = 7};

/// Runs both on a thread each, with a Session each, until both have ended; rethrows what they threw.
std::pair<Trained, Trained> train_both(const Training& a, const Training& b, const SessionOptions& options) {
  std::pair<Trained, Trained> results;
  std::exception_ptr errors[2];
  auto run = [&](const Training& training, Trained& result, std::exception_ptr& error) {
    return std::thread([&] {
      try {
        result = train(training, options);
      } catch (...) {
        error = std::current_exception();
      }
    });
  };
  std::thread first = run(a, results.first, errors[0]), second = run(b, results.second, errors[1]);
  first.join();
  second.join();
  for (auto& error : errors)
    if (error) std::rethrow_exception(error);
  return results;
}

struct SessionsTest : ::testing::Test {
  void SetUp() override {
    CpuDevice::instance();
    at::globalContext().setDeterministicAlgorithms(true, false);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
    one = train(kOne, std::nullopt);
    other = train(kOther, std::nullopt);
    const Trained observed_one = train(kOne, SessionOptions{.min_page_bytes = 1});
    const Trained observed_other = train(kOther, SessionOptions{.min_page_bytes = 1});
    peaks = observed_one.stats.peak_bytes + observed_other.stats.peak_bytes;
    // What is neither page nor the operator's own when its turn comes: scalars that LibTorch makes without an operator.
    constexpr int64_t kScalars = 1 << 10;
    floor = std::max(observed_one.floor_bytes, observed_other.floor_bytes) + kScalars;
    ASSERT_LT(floor, peaks / 3);
  }
  void expect_both(const SessionOptions& options) {
    auto [a, b] = train_both(kOne, kOther, options);
    expect_same(a, one);
    expect_same(b, other);
    EXPECT_LE(a.stats.peak_bytes, options.budget_bytes);
    EXPECT_LE(b.stats.peak_bytes, options.budget_bytes);
  }
  int64_t held() { return CpuDevice::instance().ledger().used_bytes(); }

  Trained one, other;
  int64_t peaks = 0;  ///< of the two together
  int64_t floor = 0;  ///< the larger of the two
};

TEST_F(SessionsTest, TwoThreadsUnderOneBudgetTrainAsEachAlone) {
  for (int64_t budget : {kUnlimitedBytes, peaks / 2, floor}) {
    SCOPED_TRACE(str("budget ", budget, " of ", peaks, ", floor ", floor));
    const int64_t before = held();
    expect_both({.budget_bytes = budget, .min_page_bytes = 1, .small_page_bytes = 1 << 12});
    EXPECT_EQ(held(), before);
  }
}

TEST_F(SessionsTest, TwoThreadsWithLateCopiesTrainAsEachAlone) {
  SessionOptions options{.budget_bytes = peaks / 3, .small_page_bytes = 1 << 12};
  options.decorate_timeline = [](std::unique_ptr<Timeline>, std::string_view lane) {
    return std::make_unique<DelayedTimeline>(static_cast<uint32_t>(lane.size()), std::chrono::microseconds(500));
  };
  expect_both(options);
}

TEST_F(SessionsTest, TwoThreadsThatEvictEverythingTrainAsEachAlone) {
  expect_both({.min_page_bytes = 1, .observer = std::make_shared<EvictEverything>()});
}

TEST_F(SessionsTest, SessionsOneAfterAnotherHaveBudgetsOfTheirOwn) {
  for (int64_t budget : {kUnlimitedBytes, floor, peaks / 2, floor}) {
    Trained result =
        train(kOne, SessionOptions{.budget_bytes = budget, .min_page_bytes = 1, .small_page_bytes = 1 << 12});
    expect_same(result, one);
    EXPECT_LE(result.stats.peak_bytes, budget);
  }
}

TEST_F(SessionsTest, RefusesToJoinWithOtherBudgetsNamingBoth) {
  Session session({.budget_bytes = int64_t{3} << 30, .host_budget_bytes = int64_t{2} << 30});
  auto refusal = [](SessionOptions options) {
    std::string message;
    std::thread([&] {
      try {
        Session joined(std::move(options));
      } catch (const BadRequest& error) {
        message = error.what();
      }
    }).join();
    return message;
  };
  std::string budget = refusal({.budget_bytes = int64_t{4} << 30, .host_budget_bytes = int64_t{2} << 30});
  EXPECT_NE(budget.find("budget_bytes is 4294967296"), std::string::npos) << budget;
  EXPECT_NE(budget.find("3221225472"), std::string::npos) << budget;
  std::string host = refusal({.budget_bytes = int64_t{3} << 30});
  EXPECT_NE(host.find("host_budget_bytes is unlimited"), std::string::npos) << host;
  EXPECT_EQ(refusal({.budget_bytes = int64_t{3} << 30, .host_budget_bytes = int64_t{2} << 30}), "");
  EXPECT_EQ(session.ledger().budget_bytes(), int64_t{3} << 30);  // as before, also after one joined and left
}

TEST_F(SessionsTest, AnExceptionInOneLeavesTheOtherWorking) {
  Training failing = kOther;
  failing.after_step = [](int step) {
    if (step == 2) throw std::runtime_error("user");
  };
  const int64_t before = held();
  const SessionOptions options{.budget_bytes = peaks / 3, .small_page_bytes = 1 << 12};
  Trained result;
  std::string message;
  std::thread first([&] { result = train(kOne, options); });
  std::thread second([&] {
    try {
      train(failing, options);
    } catch (const std::runtime_error& error) {
      message = error.what();
    }
  });
  second.join();
  first.join();
  EXPECT_EQ(message, "user");
  expect_same(result, one);
  EXPECT_EQ(held(), before);
}

}  // namespace
}  // namespace spillway
