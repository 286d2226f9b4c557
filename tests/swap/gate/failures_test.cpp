// Tests of a Session that cannot go on: in children of fork(), in work that outlives it, after a failing disk.
#include <ATen/ATen.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <new>
#include <optional>
#include <string>
#include <thread>

#include "core/device/cpu_device.h"
#include "core/error.h"
#include "swap/gate/device_share.h"
#include "swap/gate/operator_observer.h"
#include "swap/gate/storage_page.h"
#include "swap/session.h"
#include "tests/support/disk.h"

namespace spillway {
using namespace swap;
namespace {

constexpr int64_t kElements = 1 << 18;
constexpr int64_t kBytes = kElements * 4;

/// Runs `work` in a child, and returns how the child ended. A child that hangs is killed.
int status_of_child(const std::function<int()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    int code = 99;
    try {
      code = work();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "in the child: %s\n", error.what());
    }
    ::_exit(code);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return status;
}

template <class Error>
bool throws(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error&) {
    return true;
  }
  return false;
}

TEST(ForkTest, AChildAllocatesAsMuchAsItLikesAndIsToldWhatIsAbsent) {
  Session session({.budget_bytes = 4 * kBytes, .small_page_bytes = 0});
  at::Tensor absent = at::full({kElements}, 3.0F), present = at::full({kElements}, 4.0F);
  session.pager().evict_all();
  (void)present.neg();  // resident again
  std::atomic<bool> stop = false;
  std::thread other([&] {  // holds the locks from time to time
    while (!stop) (void)c10::GetAllocator(c10::kCPU)->allocate(100'000);
  });
  for (int i = 0; i < 20; ++i) {
    const int status = status_of_child([&] {
      std::vector<at::Tensor> large;
      for (int n = 0; n < 8; ++n) large.push_back(at::empty({kElements}));
      for (at::Tensor& tensor : large) std::memset(tensor.data_ptr(), 1, static_cast<size_t>(kBytes));
      if (present.const_data_ptr<float>()[kElements - 1] != 4.0F) return 1;
      if (!throws<c10::Error>([&] { (void)absent.data_ptr(); })) return 2;
      if (!throws<c10::Error>([&] { (void)absent.select(0, 0).item(); })) return 3;
      if (!throws<std::exception>([&] { (void)resident(absent); })) return 4;
      if (!throws<std::logic_error>([] { Session another({.budget_bytes = kBytes}); })) return 5;
      absent.reset();
      present.reset();
      return 0;
    });
    ASSERT_EQ(status, 0);
  }
  stop = true;
  other.join();
  EXPECT_EQ(absent.sum().item<float>(), 3.0F * kElements);
  EXPECT_LE(session.stats().peak_bytes, 4 * kBytes);
}

TEST(ForkTest, AChildNeverWaitsForThePagersLock) {
  Session session({.budget_bytes = 4 * kBytes, .small_page_bytes = 0});
  const at::Tensor page = at::full({kElements}, 3.0F);
  std::atomic<bool> locked = false, forked = false;
  std::thread other([&] {
    session.pager().table().locked([&] {
      locked = true;
      while (!forked) std::this_thread::yield();
    });
  });
  while (!locked) std::this_thread::yield();
  const int status = status_of_child([&] {
    categorize(page, Category::weights);
    return page.const_data_ptr<float>()[kElements - 1] == 3.0F ? 0 : 1;
  });
  forked = true;
  other.join();
  EXPECT_EQ(status, 0);
}

TEST(ForkTest, AChildOfAProcessWithoutSessionsMayOpenItsOwn) {
  CpuDevice::instance();
  EXPECT_EQ(status_of_child([] {
              at::Tensor tensor;
              {
                Session session({.budget_bytes = 4 * kBytes, .small_page_bytes = 0});
                tensor = at::empty({1000});
                tensor.fill_(2);
                session.pager().evict_all();
              }
              return tensor.const_data_ptr<float>()[999] == 2.0F ? 0 : 1;
            }),
            0);
}

TEST(SessionEndTest, WorkThatLibTorchRunsAfterTheSessionIsNotGated) {
  std::optional<at::ThreadLocalState> captured;
  at::Tensor before;
  {
    Session session({.budget_bytes = 8 * kBytes});
    captured.emplace();
    before = at::ones({kElements});
  }
  std::vector<char> overwritten(1 << 16, 'x');  // perhaps overwrites the Session's memory
  at::ThreadLocalStateGuard guard(*captured);
  EXPECT_EQ(before.add(1).sum().item<float>(), 2.0F * kElements);
  Session next({.budget_bytes = 8 * kBytes});
  EXPECT_EQ(before.add(1).sum().item<float>(), 2.0F * kElements);
}

/// Checks that managed memory is asked for last, because otherwise a Session that could not open would leave it on. The
/// CPU has none, and refuses when it is asked.
TEST(DevicePagerTest, AsksForManagedMemoryAfterAllThatMayFail) {
  SessionOptions options{.engine = Engine::unified};
  EXPECT_THROW((void)share_device(options), BadRequest);
  options.decorate_timeline = [](std::unique_ptr<Timeline>, std::string_view) -> std::unique_ptr<Timeline> {
    throw DeviceError("no copy lane");
  };
  EXPECT_THROW((void)share_device(options), DeviceError);
  EXPECT_NO_THROW(Session{SessionOptions{}});
}

TEST(WindowFailuresTest, AnOperatorThatHadBegunToWriteSaysSo) {
  testing::TemporaryFolder folder;
  auto control = std::make_shared<testing::DiskSwitch>();
  SessionOptions options{.budget_bytes = 3 * kBytes, .small_page_bytes = 0};
  options.host_budget_bytes = 1 << 20;
  options.disk_directory = folder.path();
  options.split_bytes = kBytes / 2;
  options.decorate_disk = testing::switched(control);
  Session session(options);
  at::NoGradGuard no_grad;
  at::Tensor weight = at::full({kElements}, 5.0F), gradient = at::full({kElements}, 1.0F);
  int said = 0, unsaid = 0;
  for (int good_reads = 0; good_reads < 12; ++good_reads) {
    weight.fill_(5.0F);
    session.pager().evict_all();
    at::Tensor fill = at::full({2 * kElements}, 0.0F);  // leaves no room for the others
    std::optional<Resident> lent(resident(fill));
    control->fail(0, EIO, good_reads);
    std::string error;
    try {
      weight.sub_(gradient);
    } catch (const DiskError& thrown) {
      error = thrown.what();
    }
    control->fail(0);
    if (error.empty()) continue;
    lent.reset();
    fill.reset();
    const bool changed = weight.sum().item<float>() != 5.0F * kElements;
    const bool says = error.find("has changed a part of its arguments") != std::string::npos;
    EXPECT_TRUE(says || !changed) << error;
    said += says;
    unsaid += !says;
  }
  EXPECT_GT(said, 0);
  EXPECT_GT(unsaid, 0);
}

/// An observer that throws in every kernel of sub_ except the first.
class ThrowLater final : public OperatorObserver {
 public:
  explicit ThrowLater(std::function<void()> thrower) : throw_(std::move(thrower)) {}
  void before(const c10::OperatorHandle& op, const torch::jit::Stack&) override {
    if (op.schema().name() == "aten::sub_" && ++kernels_ > 1) throw_();
  }

 private:
  const std::function<void()> throw_;
  int kernels_ = 0;
};

template <class Error>
void expect_half_written(const std::function<void()>& thrower) {
  SessionOptions options{.observer = std::make_shared<ThrowLater>(thrower)};
  options.split_bytes = kBytes / 2;
  Session session(options);
  at::NoGradGuard no_grad;
  at::Tensor weight = at::full({kElements}, 5.0F), gradient = at::full({kElements}, 1.0F);
  try {
    weight.sub_(gradient);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("has changed a part of its arguments"), std::string::npos) << error.what();
  }
  EXPECT_NE(weight.sum().item<float>(), 5.0F * kElements);
}

TEST(WindowFailuresTest, EveryKindOfErrorSaysThatAnArgumentIsHalfWritten) {
  expect_half_written<DiskError>([] { throw DiskError("full"); });
  expect_half_written<OutOfBudget>([] { throw OutOfBudget("no room", 2, 1); });
  expect_half_written<c10::Error>([] { TORCH_CHECK(false, "a kernel's"); });
  expect_half_written<std::runtime_error>([] { throw std::bad_alloc(); });
}

struct TranslatedError : std::exception {};

TEST(TranslatedErrorsTest, AnOperatorThatDoesNotFitThrowsWhatTheUserMakesOfIt) {
  std::string told;
  Session session({.budget_bytes = 4 * kBytes, .translate_error = [&](const std::exception& error) {
                     told = error.what();
                     throw TranslatedError();
                   }});
  EXPECT_TRUE(throws<TranslatedError>([] { (void)at::zeros({8 * kElements}); }));
  EXPECT_NE(told.find("cannot free 8.00 MiB for aten::zeros"), std::string::npos) << told;
  told.clear();
  EXPECT_FALSE(throws<TranslatedError>([] { (void)at::zeros({kElements}); }));
  EXPECT_TRUE(throws<c10::Error>([] { (void)at::zeros({2, 3}).matmul(at::zeros({2, 3})); }));
  EXPECT_EQ(told, "");
}

TEST(TranslatedErrorsTest, ErrorsThatAreLeftAloneAreThrown) {
  Session session({.budget_bytes = 4 * kBytes, .translate_error = [](const std::exception&) {}});
  EXPECT_TRUE(throws<OutOfBudget>([] { (void)at::zeros({8 * kElements}); }));
}

TEST(ForgottenStepsTest, AStepThatIsForgottenHasNoSchedule) {
  Session session({});
  auto step = session.step();
  (void)at::zeros({kElements}).add(1);
  step.forget();
  EXPECT_EQ(session.schedule(), nullptr);
  auto next = session.step();
  (void)at::zeros({kElements}).add(1);
  next.finish();
  EXPECT_NE(session.schedule(), nullptr);
}

}  // namespace
}  // namespace spillway
