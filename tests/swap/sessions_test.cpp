// Tests of several Sessions in one process: side by side on threads, and one after another.
#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <thread>

#include "core/device/cpu_device.h"
#include "core/error.h"
#include "tests/support/checking_observers.h"
#include "tests/support/copies.h"
#include "tests/support/small_training.h"

namespace spillway {
using namespace swap;
namespace {

using testing::DelayedTimeline;
using testing::EvictEverything;
using testing::expect_same;
using testing::train;
using testing::Trained;
using testing::Training;

const Training kOne{.seed = 1, .channels = 8, .edge = 24, .steps = 5};
const Training kOther{.seed = 2, .channels = 12, .edge = 20, .steps = 7};

/// Bytes outside of pages and of the operator's own memory: scalars that LibTorch makes without an operator.
constexpr int64_t kScalars = 1 << 10;

/// Runs both trainings on a thread each, with a Session each, until both have ended. Rethrows their errors.
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
  int64_t peaks = 0;  ///< peak bytes of both together
  int64_t floor = 0;  ///< larger floor of the two
};

TEST_F(SessionsTest, TwoThreadsUnderOneBudgetTrainAsEachAlone) {
  // At the floor itself it could fail: memory that one thread has just been given and not yet used cannot leave for the
  // other.
  for (int64_t budget : {kUnlimitedBytes, peaks / 2, floor * 5 / 4}) {
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
  EXPECT_EQ(session.ledger().budget_bytes(), int64_t{3} << 30);  // as before, also after a Session joined and left
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

TEST_F(SessionsTest, ATraceHoldsNothingOfTheOtherSessions) {
  const Trained alone = train(kOne, SessionOptions{.min_page_bytes = 1});
  auto [beside, unused] = train_both(kOne, kOther, {.min_page_bytes = 1});
  EXPECT_EQ(beside.operator_bytes, alone.operator_bytes);
}

/// Runs `work` on a thread of its own inside a Session, while another Session with the same options is open here.
void beside_an_open_session(const SessionOptions& options, const std::function<void()>& work) {
  Session open(options);
  std::exception_ptr error;
  std::thread([&] {
    try {
      Session session(options);
      work();
    } catch (...) {
      error = std::current_exception();
    }
  }).join();
  if (error) std::rethrow_exception(error);
}

TEST_F(SessionsTest, TensorsOfAClosedSessionAreAbsentUntilTheyAreLentOrTheLastSessionCloses) {
  at::Tensor a, b;
  Session open(SessionOptions{});
  {
    std::thread([&] {
      Session session(SessionOptions{});
      a = at::arange(10'000, at::kFloat) + 1;
      b = a * 2;
    }).join();
  }
  try {
    (void)a.data_ptr<float>();
    FAIL() << "gave a pointer that the open Session may take away";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("resident(tensor)"), std::string::npos);
  }
  {
    auto lent = resident_read(a);
    EXPECT_EQ(a.const_data_ptr<float>()[7], 8);
  }
  EXPECT_EQ((b + 1)[9].item<float>(), 21);  // the Session that is open uses it
}

TEST_F(SessionsTest, TheLastSessionBringsHomeWhatOthersLeft) {
  at::Tensor a, b;
  beside_an_open_session({}, [&] {
    a = at::arange(10'000, at::kFloat) + 1;
    b = a * 2;
  });
  EXPECT_EQ(a.data_ptr<float>()[7], 8);
  EXPECT_EQ(b.data_ptr<float>()[9'999], 20'000);
}

TEST_F(SessionsTest, WhatIsLentOutlivesTheSession) {
  const int64_t before = held();
  {
    at::Tensor a;
    std::optional<Resident> lent;
    {
      Session session({.observer = std::make_shared<EvictEverything>()});
      a = at::arange(10'000, at::kFloat) + 1;
      lent.emplace(resident(a));
    }
    EXPECT_EQ(a.data_ptr<float>()[7], 8);
    EXPECT_GT(held(), before);
  }
  EXPECT_EQ(held(), before);
}

TEST_F(SessionsTest, SharedWeightsServeTwoSessionsAtOnce) {
  const auto weight = at::randn({64, 64});
  auto work = [&](int64_t seed, std::vector<double>& sums) {
    auto x = at::full({64, 64}, 0.01 * static_cast<double>(seed));
    for (int i = 0; i < 30; ++i) {
      x = at::tanh(x.matmul(weight));
      sums.push_back(x.sum().item<double>());
    }
  };
  std::vector<double> plain[2], paged[2];
  for (int64_t t : {0, 1}) work(t + 1, plain[t]);
  for (bool evict : {false, true}) {
    const SessionOptions options{.budget_bytes = DeviceMemory::charge_of(64 * 64 * 4) * 4 + kScalars,
                                 .min_page_bytes = 1,
                                 .small_page_bytes = 0,
                                 .observer = evict ? std::make_shared<EvictEverything>() : nullptr};
    std::vector<std::thread> threads;
    for (int64_t t : {0, 1})
      threads.emplace_back([&, t] {
        Session session(options);
        paged[t].clear();
        for (int step = 0; step < 3; ++step) {
          auto scope = session.step();
          paged[t].clear();
          work(t + 1, paged[t]);
        }
      });
    for (auto& thread : threads) thread.join();
    for (int64_t t : {0, 1}) EXPECT_EQ(paged[t], plain[t]);
  }
  EXPECT_NO_THROW((void)weight.const_data_ptr<float>());
}

}  // namespace
}  // namespace spillway
