// Several Sessions in one process: side by side on threads, and one after another.
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "core/cpu_allocator.h"
#include "core/error.h"
#include "swap/device_pager.h"
#include "swap/storage_page.h"
#include "tests/support/checking_observers.h"
#include "tests/support/copies.h"
#include "tests/support/small_training.h"

namespace spillway {
namespace {

using testing::DelayedTimeline;
using testing::EvictEverything;
using testing::expect_same;
using testing::ThrottledTimeline;
using testing::train;
using testing::Trained;
using testing::Training;

const Training kOne{.seed = 1, .channels = 8, .edge = 24, .steps = 5};
const Training kOther{.seed = 2, .channels = 12, .edge = 20, .steps = 7};

/// What is neither page nor the operator's own when its turn comes: scalars that LibTorch makes without an operator.
constexpr int64_t kScalars = 1 << 10;

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
  // At the floor itself, memory that one thread has just been given and not yet used cannot leave for the other's sake.
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

TEST_F(SessionsTest, ATraceHoldsNothingOfTheOtherSessions) {
  const Trained alone = train(kOne, SessionOptions{.min_page_bytes = 1});
  auto [beside, unused] = train_both(kOne, kOther, {.min_page_bytes = 1});
  EXPECT_EQ(beside.operator_bytes, alone.operator_bytes);
}

/// Runs `work` on a thread of its own inside a Session, while another one with the same options is open here.
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
    EXPECT_NE(std::string(error.what()).find("spillway::resident"), std::string::npos);
  }
  {
    auto lent = resident_read(a);
    EXPECT_EQ(a.const_data_ptr<float>()[7], 8);
  }
  EXPECT_EQ((b + 1)[9].item<float>(), 21);  // used by the one that is open
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

/// Waits until `count` threads are there, or throws.
struct Meeting {
  std::mutex mutex;
  std::condition_variable changed;
  int here = 0;
  void meet(int count) {
    std::unique_lock lock(mutex);
    ++here;
    changed.notify_all();
    if (!changed.wait_for(lock, std::chrono::seconds(20), [&] { return here >= count; }))
      throw std::runtime_error("the other one never came");
  }
};

TEST_F(SessionsTest, AnOperatorThatWaitsForAnotherThreadLetsItHaveItsTurn) {
  static Meeting* meeting = nullptr;
  static auto* library = new torch::Library(torch::Library::DEF, "sessions_test", c10::nullopt, __FILE__, __LINE__);
  static bool defined = [] {
    library->def("meet(Tensor x) -> ()");
    library->impl("meet", c10::DispatchKey::CPU, [](const at::Tensor&) { meeting->meet(2); });
    return true;
  }();
  (void)defined;
  Meeting both;
  meeting = &both;
  auto meet =
      c10::Dispatcher::singleton().findSchemaOrThrow("sessions_test::meet", "").typed<void(const at::Tensor&)>();
  std::string errors[2];
  std::vector<std::thread> threads;
  for (int t : {0, 1})
    threads.emplace_back([&, t] {
      Session session(SessionOptions{});
      try {
        meet.call(at::ones({100}));
      } catch (const std::exception& error) {
        errors[t] = error.what();
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(errors[0] + errors[1], "");
}

/// Says when it is inside an operator, and then gives a thread that does not wait for it time to do harm.
class SlowInside final : public OperatorObserver {
 public:
  SlowInside(Meeting& inside, const std::atomic<bool>& closed, bool& was_closed)
      : inside_(inside), closed_(closed), was_closed_(was_closed) {}
  void before(const c10::OperatorHandle& op, const torch::jit::Stack&) override {
    if (op.schema().name() != "aten::exp_") return;
    inside_.meet(4);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    was_closed_ = closed_;
  }

 private:
  Meeting& inside_;
  const std::atomic<bool>& closed_;
  bool& was_closed_;
};

/// Closing ends pages, which an operator of another thread may have found already.
TEST_F(SessionsTest, ClosingWaitsForTheOperatorThatRuns) {
  Meeting inside;
  std::atomic<bool> closed = false;
  bool was_closed = false;
  std::thread other([&] {
    Session session({.observer = std::make_shared<SlowInside>(inside, closed, was_closed)});
    auto x = at::zeros({1000});
    inside.meet(2);  // both are open
    x.exp_();
  });
  {
    Session session(SessionOptions{});
    inside.meet(2);
    inside.meet(4);
  }
  closed = true;
  other.join();
  EXPECT_FALSE(was_closed);
}

/// Pages end only in somebody's turn, so who looks one up between operators waits for his.
TEST_F(SessionsTest, LoansAndCategoriesWaitForTheOperatorThatRuns) {
  const std::vector<std::function<void(const at::Tensor&)>> uses{
      [](const at::Tensor& tensor) { (void)resident_read(tensor); },
      [](const at::Tensor& tensor) { categorize(tensor, Category::weights); }};
  for (const auto& use : uses) {
    Meeting inside;
    std::atomic<bool> used = false;
    bool was_used = true;
    at::Tensor page;
    std::thread other([&] {
      Session session({.observer = std::make_shared<SlowInside>(inside, used, was_used)});
      auto x = at::zeros({1000});
      page = at::zeros({1000}).add(1);
      inside.meet(2);
      x.exp_();
      inside.meet(6);
    });
    inside.meet(2);
    inside.meet(4);
    use(page);
    used = true;
    inside.meet(6);
    other.join();
    EXPECT_FALSE(was_used);
  }
}

/// A loan that has found the pager waits for its turn, and the last Session closes before that.
TEST_F(SessionsTest, ALoanWaitsUntilTheLastSessionHasClosed) {
  Meeting open;
  at::Tensor first, second;
  SessionOptions options{.small_page_bytes = 0};
  options.decorate_timeline = [](std::unique_ptr<Timeline> real, std::string_view lane) -> std::unique_ptr<Timeline> {
    if (lane != "copy in") return real;
    return std::make_unique<ThrottledTimeline>("late", 4e6);  // 100 ms for each tensor
  };
  std::thread closing([&] {
    Session session(options);
    first = at::full({100000}, 1.0F);
    second = at::full({100000}, 2.0F);
    session.pager().evict_all();
    open.meet(2);
    open.meet(4);
  });
  open.meet(2);
  std::shared_ptr<DevicePager> device = DevicePager::current();
  std::unique_lock turn(device->turns);
  const auto wait_for_others = [&, before = device->turns.asked()](uint64_t others) {
    while (device->turns.asked() < before + others) std::this_thread::yield();
  };
  open.meet(4);
  wait_for_others(1);  // the Session's end
  const auto lend = [&](const at::Tensor& one, const at::Tensor& other) {
    const auto lent = resident_read(one);
    EXPECT_NO_THROW((void)other.const_data_ptr()) << "the Session has not closed";
    EXPECT_EQ(one.const_data_ptr<float>()[7], one.is_same(first) ? 1.0F : 2.0F);
  };
  std::thread one([&] { lend(first, second); }), other([&] { lend(second, first); });  // either may come home first
  wait_for_others(3);
  turn.unlock();
  one.join();
  other.join();
  closing.join();
}

/// Stops a thread inside its first operator until somebody has come, and a little longer.
class StopInside final : public OperatorObserver {
 public:
  explicit StopInside(Meeting& inside) : inside_(inside) {}
  void before(const c10::OperatorHandle& op, const torch::jit::Stack&) override {
    if (op.schema().name() != "aten::exp_") return;
    inside_.meet(2);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }

 private:
  Meeting& inside_;
};

TEST_F(SessionsTest, AnAllocationBetweenOperatorsWaitsForTheOperatorThatRuns) {
  constexpr int64_t kBytes = 1 << 20;
  Meeting inside;
  const int64_t budget = held() + 3 * kBytes / 2;
  std::thread other([&] {
    Session session({.budget_bytes = budget, .observer = std::make_shared<StopInside>(inside)});
    auto x = at::zeros({kBytes / 4});
    x.exp_();  // leases most of the budget
    inside.meet(4);
  });
  std::string message;
  {
    Session session({.budget_bytes = budget});
    inside.meet(2);
    try {
      auto memory = c10::GetCPUAllocator()->allocate(kBytes);
    } catch (const OutOfBudget& error) {
      message = error.what();
    }
    inside.meet(4);
  }
  other.join();
  EXPECT_EQ(message, "");
}

}  // namespace
}  // namespace spillway
