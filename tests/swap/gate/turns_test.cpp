// Tests of which threads wait for which operators, where several threads share a device.
#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/device/cpu_device.h"
#include "core/error.h"
#include "swap/gate/device_pager.h"
#include "swap/gate/operator_observer.h"
#include "swap/gate/storage_page.h"
#include "swap/session.h"
#include "tests/support/copies.h"

namespace spillway {
using namespace swap;
namespace {

/// A counter of arrivals. meet() waits until `count` threads are there, or throws.
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

TEST(TurnsTest, AnOperatorThatWaitsForAnotherThreadLetsItHaveItsTurn) {
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

/// An observer that reports when it is inside an operator. It then gives a thread that does not wait for the operator
/// time to do harm.
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

/// Checks that closing waits, because it ends pages that an operator of another thread may already have found.
TEST(TurnsTest, ClosingWaitsForTheOperatorThatRuns) {
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

/// Checks threads that look a page up between operators. They wait for their own turn, because pages end only in a
/// turn.
TEST(TurnsTest, LoansAndCategoriesWaitForTheOperatorThatRuns) {
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

/// Checks a loan that has found the pager and waits for its turn. The last Session closes before that turn.
TEST(TurnsTest, ALoanWaitsUntilTheLastSessionHasClosed) {
  Meeting open;
  at::Tensor first, second;
  SessionOptions options{.small_page_bytes = 0};
  options.decorate_timeline = [](std::unique_ptr<Timeline> real, std::string_view lane) -> std::unique_ptr<Timeline> {
    if (lane != "copy in") return real;
    return std::make_unique<testing::ThrottledTimeline>("late", 4e6);  // 100 ms for each tensor
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
  wait_for_others(1);  // the thread that closes the Session
  const auto lend = [&](const at::Tensor& one, const at::Tensor& other) {
    const auto lent = resident_read(one);
    EXPECT_NO_THROW((void)other.const_data_ptr()) << "the Session has not closed";
    EXPECT_EQ(one.const_data_ptr<float>()[7], one.is_same(first) ? 1.0F : 2.0F);
  };
  std::thread one([&] { lend(first, second); }), other([&] { lend(second, first); });  // either may be back first
  wait_for_others(3);
  turn.unlock();
  one.join();
  other.join();
  closing.join();
}

/// An observer that stops a thread inside its first operator until another thread has come, and a little longer.
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

TEST(TurnsTest, AnAllocationBetweenOperatorsWaitsForTheOperatorThatRuns) {
  constexpr int64_t kBytes = 1 << 20;
  Meeting inside;
  const int64_t budget = CpuDevice::instance().ledger().used_bytes() + 3 * kBytes / 2;
  std::thread other;
  std::string message;
  {
    Session session({.budget_bytes = budget});  // opened first, because opening waits for the operator that runs, too
    other = std::thread([&] {
      Session others({.budget_bytes = budget, .observer = std::make_shared<StopInside>(inside)});
      auto x = at::zeros({kBytes / 4});
      x.exp_();  // leases most of the budget
      inside.meet(4);
    });
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
