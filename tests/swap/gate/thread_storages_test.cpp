// Tests of the tensors that closed Sessions leave behind, and of those that are made between Sessions.
#include "swap/gate/thread_storages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <thread>

#include "core/device/cpu_device.h"
#include "core/error.h"
#include "swap/pager/pager.h"
#include "tests/support/small_training.h"

namespace spillway {
using namespace swap;
namespace {

using testing::SmallNet;

/// Bytes for scalars that LibTorch makes without an operator.
constexpr int64_t kFewScalars = 1 << 10;
constexpr int64_t kMiB = 1 << 20;

int64_t held() {
  return CpuDevice::instance().ledger().used_bytes();
}
std::vector<char> bytes_of(const at::Tensor& tensor) {
  const auto lent = resident_read(tensor);
  const auto* data = static_cast<const char*>(tensor.const_data_ptr());
  return {data, data + tensor.nbytes()};
}
at::Tensor floats(int64_t bytes, double value) {
  return at::full({bytes / 4}, value, at::kFloat);
}
/// Runs `work` on a thread of its own.
void on_a_thread(const std::function<void()>& work) {
  std::thread(work).join();
}
/// Returns the message of the OutOfBudget that `work` throws; empty when it throws none.
std::string refusal(const std::function<void()>& work) {
  try {
    work();
  } catch (const OutOfBudget& error) {
    return error.what();
  }
  return "";
}

/// A run whose model, optimizer, losses and outputs live on.
struct KeptRun {
  SmallNet net{nullptr};
  std::unique_ptr<Adam> adam;
  std::vector<at::Tensor> results;
  int64_t floor_bytes = 0, peak_bytes = 0;

  std::vector<std::vector<char>> bytes() const {
    std::vector<std::vector<char>> all;
    for (const auto& p : net->parameters()) all.push_back(bytes_of(p));
    for (const auto& t : results) all.push_back(bytes_of(t));
    return all;
  }
};

KeptRun keep_run(const std::optional<SessionOptions>& options) {
  at::set_num_threads(1);
  KeptRun run;
  auto random = at::make_generator<at::CPUGeneratorImpl>(5);
  std::optional<Session> session;
  if (options) session.emplace(*options);
  run.net = SmallNet(8);
  for (auto& p : run.net->parameters()) {
    at::NoGradGuard no_grad;
    p.uniform_(-0.3, 0.3, random);
  }
  run.adam = std::make_unique<Adam>(run.net->parameters(), AdamOptions{.lr = 1e-2, .group_bytes = 1 << 14});
  const auto input = at::rand({4, 3, 24, 24}, random);
  for (int i = 0; i < 3; ++i) {
    std::optional<Session::Step> step;
    if (session) step.emplace(session->step());
    auto output = run.net(input);
    auto loss = output.square().mean();
    loss.backward();
    run.adam->step();
    run.results.insert(run.results.end(), {output.detach(), loss.detach(), input * i});
  }
  if (session) run.floor_bytes = session->neediest().bytes();
  if (session) run.peak_bytes = session->stats().peak_bytes;
  return run;
}

struct ThreadStoragesTest : ::testing::Test {
  void SetUp() override {
    CpuDevice::instance();
    at::globalContext().setDeterministicAlgorithms(true, false);
    expected = keep_run(std::nullopt).bytes();
    options.budget_bytes = keep_run(options).floor_bytes + kFewScalars;
  }
  SessionOptions options{.min_page_bytes = 1, .small_page_bytes = 0};
  std::vector<std::vector<char>> expected;
};

TEST_F(ThreadStoragesTest, TensorsThatNoOperatorUsesLeaveWhereNothingElseMakesRoom) {
  { const Session first(options); }
  const at::Tensor left = floats(4 * kMiB, 1);
  const auto stays = [&] {
    return left.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get() != nullptr;
  };
  options.budget_bytes = held() + 8 * kMiB + kFewScalars;
  Session session(options);
  session.pager().evict_all();
  std::vector<at::Tensor> others;
  for (int i = 0; i < 6; ++i) others.push_back(floats(2 * kMiB, i));
  EXPECT_TRUE(stays()) << "the Session's own tensors make room";
  const at::Tensor large = floats(10 * kMiB, 2);
  EXPECT_FALSE(stays());
  EXPECT_EQ((left + 1).sum().item<float>(), 2 * kMiB);
  session.pager().evict_all();
  EXPECT_FALSE(stays()) << "an operator has used it, so it is a page like others";
}

TEST_F(ThreadStoragesTest, ASecondSessionRunsAtTheFloorBesideTheTensorsOfTheFirst) {
  const int64_t before = held();
  const KeptRun first = keep_run(options);
  ASSERT_GT(held() - before, 8 * kFewScalars);
  const KeptRun second = keep_run(options);
  EXPECT_LE(second.peak_bytes, options.budget_bytes);
  EXPECT_TRUE(first.bytes() == expected);
  EXPECT_TRUE(second.bytes() == expected);
}

TEST_F(ThreadStoragesTest, TensorsMadeBetweenSessionsLeaveEvenWhenTheyExceedTheBudget) {
  const KeptRun first = keep_run(options);
  std::vector<at::Tensor> between{first.results[2] * 2, at::arange(kMiB, at::kFloat)};
  for (int i = 0; i < 4; ++i) between.push_back(between.back() + 1);
  const auto views = at::split(between.back(), kMiB / 2);
  ASSERT_GT(held(), options.budget_bytes);
  const KeptRun second = keep_run(options);
  EXPECT_LE(second.peak_bytes, options.budget_bytes);
  EXPECT_TRUE(second.bytes() == expected);
  EXPECT_TRUE(at::equal(between[0], first.results[2] + first.results[2]));
  EXPECT_TRUE(at::equal(views[1], at::arange(kMiB / 2, kMiB, at::kFloat) + 4));
}

TEST_F(ThreadStoragesTest, TheRecordForgetsDeadStoragesAndHoldsNoMemory) {
  const int64_t before = held();
  for (int i = 0; i < 5'000; ++i) (void)floats(64, i);
  const auto last = floats(64, 1);
  EXPECT_EQ(held() - before, DeviceMemory::charge_of(64));
  const auto living = ThreadStorages::mine()->living();
  EXPECT_EQ(std::count_if(living.begin(), living.end(),
                          [&](const auto& storage) { return storage.get() == last.storage().unsafeGetStorageImpl(); }),
            1);
  EXPECT_LT(ThreadStorages::mine()->size(), 2'000u);
}

TEST_F(ThreadStoragesTest, TensorsOfAnotherThreadStayAndTheMessageCountsThem) {
  at::Tensor theirs;
  on_a_thread([&] { theirs = floats(2 * kMiB, 3); });
  const int64_t budget = held() + kMiB;
  const std::string message = refusal([&] {
    Session session({.budget_bytes = budget});
    (void)floats(2 * kMiB, 1);
  });
  EXPECT_NE(message.find("nothing more can leave (cpu); 2.00 MiB of them belong to no page (other 2.00 MiB)"),
            std::string::npos)
      << message;
  EXPECT_EQ(theirs.const_data_ptr<float>()[kMiB / 4], 3);
}

TEST_F(ThreadStoragesTest, ABudgetBelowWhatCannotLeaveIsRefusedWithItsBytesAndChangesNothing) {
  at::Tensor theirs;
  on_a_thread([&] { theirs = floats(2 * kMiB, 3); });
  const auto mine = floats(2 * kMiB, 4);
  const std::string message = refusal([] { Session session({.budget_bytes = kMiB}); });
  EXPECT_NE(message.find("[session] a budget of 1.00 MiB is below the 2.00 MiB"), std::string::npos) << message;
  EXPECT_NE(message.find("2.00 MiB of them belong to no page"), std::string::npos) << message;
  EXPECT_EQ(mine.const_data_ptr<float>()[kMiB / 4], 4);
  EXPECT_TRUE(keep_run(SessionOptions{.budget_bytes = held() + kMiB}).bytes() == expected);
}

TEST_F(ThreadStoragesTest, AThreadThatJoinsBringsItsOwnTensorsUnderTheBudget) {
  at::Tensor theirs;
  on_a_thread([&] {
    theirs = floats(2 * kMiB, 5);
    const int64_t budget = held() + kMiB;
    on_a_thread([&] {
      Session elsewhere({.budget_bytes = budget});
      EXPECT_NE(refusal([] { (void)floats(2 * kMiB, 1); }), "");
    });
    Session second({.budget_bytes = budget});
    std::string message;
    on_a_thread([&] {
      Session elsewhere({.budget_bytes = budget});
      message = refusal([] { (void)floats(2 * kMiB, 1); });
    });
    EXPECT_EQ(message, "");
    EXPECT_EQ(theirs.add_(1)[9].item<float>(), 6);
  });
}

}  // namespace
}  // namespace spillway
