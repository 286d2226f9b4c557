// Tests of a Session whose pages fit neither the device nor the host.
#include <gtest/gtest.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/linear.h>

#include <cerrno>
#include <optional>
#include <thread>

#include "core/device/cpu_device.h"
#include "core/error.h"
#include "core/host/memory_limit.h"
#include "swap/gate/device_pager.h"
#include "swap/optim/optimizer.h"
#include "swap/pager/pager.h"
#include "swap/schedule/step_trace.h"
#include "swap/session.h"
#include "tests/support/copies.h"
#include "tests/support/disk.h"

namespace spillway {
using namespace swap;
namespace {

namespace nn = torch::nn;

using testing::DelayedTimeline;
using testing::DiskSwitch;
using testing::switched;
using testing::TemporaryFolder;

/// A stack of convolutions with norms. Each of its activations has 256 KiB.
struct StackImpl : nn::Module {
  StackImpl() {
    for (int i = 0; i < 8; ++i) {
      convolutions.push_back(register_module(str("convolution", i), nn::Conv3d(nn::Conv3dOptions(8, 8, 3).padding(1))));
      norms.push_back(register_module(str("norm", i), nn::InstanceNorm3d(nn::InstanceNorm3dOptions(8).affine(true))));
    }
    head = register_module("head", nn::Linear(8, 300'000 / 8));
  }
  at::Tensor forward(at::Tensor x) {
    for (size_t i = 0; i < convolutions.size(); ++i) x = x + at::leaky_relu(norms[i](convolutions[i](x)), 0.01);
    return head(x.mean({2, 3, 4}));
  }
  std::vector<nn::Conv3d> convolutions;
  std::vector<nn::InstanceNorm3d> norms;
  nn::Linear head{nullptr};
};
TORCH_MODULE(Stack);

/// A training that always starts from the same seed, and runs step by step.
class Training {
 public:
  explicit Training(std::optional<SessionOptions> options) {
    at::manual_seed(3);
    if (options) session_.emplace(std::move(*options));
    net_ = Stack();
    adam_.emplace(net_->parameters(), AdamOptions{.lr = 1e-2, .group_bytes = 1 << 14});
    input_ = at::randn({2, 8, 16, 16, 16});
  }
  void step() {
    adam_->zero_grad();
    std::optional<Session::Step> step;
    if (session_) step.emplace(session_->step());
    auto loss = net_(input_).square().mean();
    loss.backward();
    adam_->step();
    adam_->zero_grad();
    losses.push_back(loss.item<double>());
  }
  Session& session() { return *session_; }
  Stack& net() { return net_; }
  /// Closes the Session and returns the parameters.
  std::vector<at::Tensor> parameters() {
    session_.reset();
    std::vector<at::Tensor> all;
    for (const auto& p : net_->parameters()) all.push_back(p.detach().clone());
    return all;
  }
  std::vector<double> losses;

 private:
  std::optional<Session> session_;
  Stack net_{nullptr};
  std::optional<Adam> adam_;
  at::Tensor input_;
};

constexpr int64_t kHostBudget = 2 << 20;
constexpr int kSteps = 4;

struct SessionTiersTest : ::testing::Test {
  void SetUp() override {
    CpuDevice::instance();
    at::globalContext().setDeterministicAlgorithms(true, false);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
    Training free(std::nullopt);
    for (int i = 0; i < kSteps; ++i) free.step();
    losses = free.losses;
    parameters = free.parameters();
    Training observed{SessionOptions{}};
    observed.step();
    peak = observed.session().stats().peak_bytes;
    floor = observed.session().trace()->floor_bytes();
  }
  SessionOptions options() const {
    SessionOptions options;
    options.budget_bytes = std::max(floor + floor / 10, peak / 3);
    options.host_budget_bytes = kHostBudget;
    options.disk_directory = folder.path();
    options.small_page_bytes = 1 << 14;
    options.decorate_disk = switched(control);
    return options;
  }
  void expect_the_same(Training& training) {
    EXPECT_EQ(training.losses, losses);
    const auto trained = training.parameters();
    ASSERT_EQ(trained.size(), parameters.size());
    for (size_t i = 0; i < trained.size(); ++i) EXPECT_TRUE(at::equal(trained[i], parameters[i])) << i;
  }

  TemporaryFolder folder;
  std::shared_ptr<DiskSwitch> control = std::make_shared<DiskSwitch>();
  std::vector<double> losses;
  std::vector<at::Tensor> parameters;
  int64_t peak = 0, floor = 0;
};

TEST_F(SessionTiersTest, BeyondDeviceAndHostTheBitsAreThoseOfUnlimitedMemory) {
  for (bool prefetch : {true, false}) {
    SCOPED_TRACE(prefetch ? "prefetch" : "on demand");
    SessionOptions given = options();
    given.prefetch = prefetch;
    Training training(given);
    for (int i = 0; i < kSteps; ++i) training.step();
    const SessionStats stats = training.session().stats();
    EXPECT_LE(stats.peak_bytes, given.budget_bytes);
    EXPECT_LE(stats.host_peak_bytes, kHostBudget);
    EXPECT_GT(stats.disk_peak_bytes, kHostBudget);
    EXPECT_GT(stats.bytes_to_disk, 0);
    EXPECT_GT(stats.bytes_from_disk, 0);
    EXPECT_EQ(folder.names().size(), 1u);
    expect_the_same(training);
    EXPECT_TRUE(folder.names().empty());
  }
}

TEST_F(SessionTiersTest, LateCopiesAndALateDiskChangeNothing) {
  for (uint32_t seed : {1u, 2u}) {
    SCOPED_TRACE(seed);
    SessionOptions given = options();
    control->longest_delay = std::chrono::microseconds(300);
    given.decorate_timeline = [seed](std::unique_ptr<Timeline>, std::string_view lane) {
      return std::make_unique<DelayedTimeline>(seed + static_cast<uint32_t>(lane.size()),
                                               std::chrono::microseconds(500));
    };
    Training training(given);
    for (int i = 0; i < kSteps; ++i) training.step();
    expect_the_same(training);
  }
}

TEST_F(SessionTiersTest, AVanishedDirectoryChangesNothing) {
  Training training(options());
  training.step();
  std::filesystem::remove_all(folder.path());
  for (int i = 1; i < kSteps; ++i) training.step();
  expect_the_same(training);
}

TEST_F(SessionTiersTest, AfterAFullDiskTheTrainingStateIsIntactAndTheStepCanBeTakenAgain) {
  Training training(options());
  training.step();
  control->fail(ENOSPC);
  try {
    training.step();
    ADD_FAILURE() << "trained without a disk";
  } catch (const DiskError& error) {
    EXPECT_NE(std::string(error.what()).find(folder.path().string()), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("No space left"), std::string::npos) << error.what();
  }
  control->fail(0);
  for (int i = 1; i < kSteps; ++i) training.step();
  expect_the_same(training);
}

TEST_F(SessionTiersTest, AFullHostWithoutADiskSaysWhatIsMissingAndLeavesTheWeightsAsTheyWere) {
  SessionOptions given = options();
  given.disk_directory.clear();
  Training training(given);
  try {
    training.step();
    ADD_FAILURE() << "found room that is not there";
  } catch (const OutOfBudget& error) {
    for (const char* part : {"host budget of 2.00 MiB", "more bytes", "--disk", "--host-budget"})
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
  const auto weights = training.parameters(), untrained = Training(std::nullopt).parameters();
  for (size_t i = 0; i < weights.size(); ++i) EXPECT_TRUE(at::equal(weights[i], untrained[i])) << i;
}

TEST_F(SessionTiersTest, RanksShareTheHostsMemoryAndTheErrorNamesItsLimit) {
  const MemoryLimit limit = host_memory_limit();
  SessionOptions given = options();
  given.disk_directory.clear();
  given.host_budget_bytes = kUnlimitedBytes;
  given.ranks_of_host = static_cast<int>(limit.bytes >> 20);  // so a share is a MiB
  Training training(given);
  try {
    training.step();
    ADD_FAILURE() << "found room that is not there";
  } catch (const OutOfBudget& error) {
    const std::string message = error.what();
    for (const std::string& part : {str("host budget of 1.00 MiB (1/", given.ranks_of_host, " of ", limit.source, ")"),
                                    std::string("more bytes"), std::string("--disk")})
      EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_EQ(message.find("--host-budget"), std::string::npos) << message;
  }
}

TEST_F(SessionTiersTest, AHostBudgetIsCutToTheLimitOfTheWholeHost) {
  SessionOptions given = options();
  given.host_budget_bytes = kUnlimitedBytes - 1;
  given.ranks_of_host = 2;
  Session session(given);
  EXPECT_LE(DevicePager::current()->host.capacity_bytes(), host_memory_limit().bytes);
}

TEST_F(SessionTiersTest, ADamagedFileIsAnErrorThatNamesThePageAndTheOtherTensorsComeHome) {
  std::vector<at::Tensor> tensors;
  at::Tensor lost;
  // On a thread of its own, so that the tensors of this one's earlier Sessions stay out of the file.
  std::thread([&] {
    Session session(options());
    at::NoGradGuard no_grad;
    for (int i = 0; i < 12; ++i) tensors.push_back(at::full({1 << 18}, i, at::kFloat));
    session.pager().evict_all();
    const auto file = folder.path() / folder.names().at(0);
    // The first page of the file belongs to one of the tensors.
    std::FILE* raw = std::fopen(file.c_str(), "r+");
    ASSERT_EQ(std::fseek(raw, 5000, SEEK_SET), 0);
    std::fputc(99, raw);
    std::fclose(raw);
    int damaged = 0;
    for (auto& tensor : tensors) {
      try {
        (void)tensor.sum();
      } catch (const DiskError& error) {
        ++damaged;
        for (const std::string& part :
             {std::string("[pager.page-in]"), std::string("1.00 MiB"), std::string("aten::sum"), file.string(),
              std::string("offset 0"), std::string("checksum")})
          EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
        lost = std::exchange(tensor, at::Tensor());
      }
    }
    EXPECT_EQ(damaged, 1);
    ::testing::internal::CaptureStderr();
  }).join();
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("not every tensor came home"), std::string::npos);
  ASSERT_TRUE(lost.defined());
  EXPECT_THROW((void)lost.data_ptr(), c10::Error);
  EXPECT_THROW((void)lost.sum(), c10::Error);
  lost.reset();
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined()) continue;
    EXPECT_EQ(tensors[i].sum().item<double>(), static_cast<double>(i) * (1 << 18));
  }
}

TEST_F(SessionTiersTest, ATensorThatComesHomeLateEndsWithItsOwnSessionsPagerWhileAnotherIsOpen) {
  std::vector<at::Tensor> tensors;
  {
    Session session(options());
    at::NoGradGuard no_grad;
    for (int i = 0; i < 6; ++i) tensors.push_back(at::full({1 << 18}, i, at::kFloat));
    session.pager().evict_all();
    control->fail(EIO, EIO);
    ::testing::internal::CaptureStderr();
  }
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("not every tensor came home"), std::string::npos);
  control->fail(0);
  for (auto& tensor : tensors) (void)resident_read(tensor);
  Session session({.min_page_bytes = 2 << 20});  // the tensor that came home in time stays out of the new pager
  const int64_t paged_bytes = session.pager().paged_bytes(), used_bytes = session.ledger().used_bytes();
  tensors.clear();
  EXPECT_EQ(session.pager().paged_bytes(), paged_bytes);
  EXPECT_EQ(session.ledger().used_bytes(), used_bytes - 6 * DeviceMemory::charge_of(1 << 20));
  EXPECT_EQ(at::ones({1 << 18}).sum().item<double>(), 1 << 18);
}

TEST_F(SessionTiersTest, RefusesADirectoryThatCannotBeUsedAndAHostTooSmallForADisk) {
  SessionOptions given = options();
  given.disk_directory = folder.path() / "nowhere";
  EXPECT_THROW(Session{given}, BadRequest);
  given = options();
  given.host_budget_bytes = 1000;
  EXPECT_THROW(Session{given}, BadRequest);
  EXPECT_NO_THROW(Session{options()});
}

}  // namespace
}  // namespace spillway
