// Tests of random models under random budgets and surroundings. Paging changes no bit, the budget holds, and every
// budget that is feasible by the trace is granted. Copies are late, irregular or failing, memory is poisoned, and
// evictions happen at random and all the time.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "core/device/cpu_device.h"
#include "core/error.h"
#include "swap/gate/operator_observer.h"
#include "swap/session.h"
#include "tests/support/checking_observers.h"
#include "tests/support/copies.h"
#include "tests/support/meddler.h"
#include "tests/support/poison.h"
#include "tests/support/random/cases.h"
#include "tests/support/random/training.h"

namespace spillway {
using namespace swap;
namespace {

using testing::CaseLimits;
using testing::first_difference;
using testing::PoisonFreed;
using testing::train_random_net;
using testing::TrainingOutcome;
using testing::TrainingSurroundings;

/// An observer that meddles with the pager after one operator in `one_in`.
class MeddlingObserver final : public OperatorObserver {
 public:
  MeddlingObserver(uint64_t seed, uint64_t one_in) : random_(seed), meddler_(random_()), one_in_(one_in) {}
  void released(Pager& pager) override {
    if (random_() % one_in_ == 0) meddler_.act(pager);
  }

 private:
  std::mt19937_64 random_;
  testing::Meddler meddler_;
  const uint64_t one_in_;
};

enum class Lanes { workers, delayed, random, flaky };

/// The options of a Session and its surroundings, drawn from a seed.
class RandomSurroundings {
 public:
  explicit RandomSurroundings(uint64_t seed) : random_(seed) {
    common_.min_page_bytes = pick({1, 64, 4096, 4096});
    common_.small_page_bytes = pick({0, 4096, 1 << 14, 1 << 20});
    common_.split_bytes = pick({kUnlimitedBytes, kUnlimitedBytes, 1, 1 << 12, 1 << 15});
  }
  /// Returns true when no operator is split. Gradients of convolutions that run in windows are sums in another order.
  bool same_bits_as_stock() const { return common_.split_bytes == kUnlimitedBytes; }

  /// Returns surroundings without a limit. Their observations tell which budgets are feasible for the others.
  TrainingSurroundings unlimited(std::shared_ptr<OperatorObserver> observer) {
    SessionOptions options = common_;
    options.observer = std::move(observer);
    return surround(options);
  }
  /// Returns surroundings with a budget between the floor and the peak, more often near the floor. A new option of
  /// Sessions is a line here.
  TrainingSurroundings limited(const TrainingOutcome& observed) {
    SessionOptions options = common_;
    const double share = !observed.floor_is_known ? 1 : std::pow(std::uniform_real_distribution<>(0, 1)(random_), 2);
    const auto above_floor = static_cast<double>(observed.stats.peak_bytes - observed.floor_bytes);
    options.budget_bytes = observed.floor_bytes + static_cast<int64_t>(share * std::max(above_floor, 0.0));
    options.prefetch = pick({0, 1, 1, 1});
    options.replay = pick({0, 1, 1});
    if (pick({0, 1})) options.observer = std::make_shared<MeddlingObserver>(random_(), pick({1, 5, 30}));
    lanes_ = static_cast<Lanes>(random_() % (observed.repeatable ? 4 : 3));
    const auto seed = static_cast<uint32_t>(random_());
    options.decorate_timeline = [this, seed](std::unique_ptr<Timeline> real, std::string_view lane) {
      return make_lane(std::move(real), seed + static_cast<uint32_t>(lane.size()));
    };
    return surround(options);
  }

 private:
  int64_t pick(std::initializer_list<int64_t> choices) { return choices.begin()[random_() % choices.size()]; }

  TrainingSurroundings surround(SessionOptions options) {
    *calm_ = false;
    return {.session = std::move(options),
            .opened = [](Session& session) { session.pager().host().arena().observe_deallocations(testing::poison); },
            .closing = [calm = calm_] { *calm = true; }};
  }
  std::unique_ptr<Timeline> make_lane(std::unique_ptr<Timeline> real, uint32_t seed) const {
    switch (lanes_) {
      case Lanes::workers:
        return real;
      case Lanes::delayed:
        return std::make_unique<testing::DelayedTimeline>(seed, std::chrono::microseconds(300));
      case Lanes::random:
        return std::make_unique<testing::RandomTimeline>(seed, std::chrono::microseconds(300));
      case Lanes::flaky:
        return std::make_unique<testing::FlakyTimeline>(seed, 300, calm_);
    }
    return real;
  }

  std::mt19937_64 random_;
  SessionOptions common_;
  Lanes lanes_ = Lanes::workers;
  std::shared_ptr<std::atomic<bool>> calm_ = std::make_shared<std::atomic<bool>>(false);
};

std::string describe(const SessionOptions& options) {
  return str("budget ", options.budget_bytes, ", prefetch ", options.prefetch, ", min_page_bytes ",
             options.min_page_bytes, ", small_page_bytes ", options.small_page_bytes, ", split_bytes ",
             options.split_bytes, options.observer ? ", observed" : "");
}

/// A case that trains the model of one seed in every way, and reports the first failure.
class ModelCase {
 public:
  ModelCase(uint64_t seed, const CaseLimits& limits) : seed_(seed), limits_(limits) {}

  std::string run() {
    PoisonFreed poisoned(CpuDevice::instance().memory().arena());
    const TrainingOutcome stock = train_random_net(seed_, limits_, {});
    std::printf("  %s\n", stock.description.c_str());
    RandomSurroundings surroundings(seed_ + 77);
    const TrainingOutcome observed = train_random_net(seed_, limits_, surroundings.unlimited(nullptr));
    if (surroundings.same_bits_as_stock()) expect_same("an unlimited Session", observed, stock);
    auto evicting = surroundings.unlimited(std::make_shared<testing::EvictEverything>());
    expect_same("evicting everything after every operator", train_random_net(seed_, limits_, evicting), observed);
    check_schemas(surroundings, observed);
    for (int i = 0; i < 3 && failure_.empty(); ++i) limit(surroundings, observed);
    return failure_.empty() ? "" : failure_ + "\n  " + stock.description;
  }

 private:
  void limit(RandomSurroundings& surroundings, const TrainingOutcome& observed) {
    const TrainingSurroundings tight = surroundings.limited(observed);
    const std::string how =
        str(describe(*tight.session), " (floor ", observed.floor_bytes, ", peak ", observed.stats.peak_bytes, ")");
    try {
      const TrainingOutcome limited = train_random_net(seed_, limits_, tight);
      expect_same(how, limited, observed);
      if (limited.stats.peak_bytes > tight.session->budget_bytes) fail(str(how, ": held ", limited.stats.peak_bytes));
    } catch (const std::exception& error) {
      fail(str(how, ": ", error.what()));
    }
  }
  void check_schemas(RandomSurroundings& surroundings, const TrainingOutcome& observed) {
    auto checker = std::make_shared<testing::SchemaChecker>();
    expect_same("checking schemas", train_random_net(seed_, limits_, surroundings.unlimited(checker)), observed);
    for (const std::string& liar : checker->liars()) fail(liar + " writes what its schema does not say");
  }
  void expect_same(const std::string& how, const TrainingOutcome& outcome, const TrainingOutcome& stock) {
    if (const std::string difference = first_difference(outcome, stock); !difference.empty())
      fail(how + ": " + difference);
  }
  void fail(const std::string& what) {
    if (failure_.empty()) failure_ = what;
  }

  const uint64_t seed_;
  const CaseLimits limits_;
  std::string failure_;
};

/// A case of several user threads that entered one Session. Each has tensors of its own, and all of them read the same
/// weights.
class ThreadsCase {
 public:
  explicit ThreadsCase(uint64_t seed) : seed_(seed), threads_(2 + static_cast<int64_t>(seed % 2)) {
    at::manual_seed(seed);
    for (int i = 0; i < 10; ++i) weights_.push_back(at::randn({kEdge, kEdge}) / std::sqrt(kEdge));
    for (int64_t t = 0; t < threads_; ++t) inputs_.push_back(at::randn({kEdge, kEdge}));
  }

  std::string run() {
    PoisonFreed poisoned(CpuDevice::instance().memory().arena());
    std::vector<at::Tensor> alone, together(inputs_.size());
    std::vector<std::string> errors(inputs_.size());
    for (int64_t t = 0; t < threads_; ++t) alone.push_back(work(t));
    {
      const int64_t page_bytes = DeviceMemory::charge_of(kEdge * kEdge * 4);
      const int64_t held = CpuDevice::instance().ledger().used_bytes();
      SessionOptions options{.budget_bytes = held + threads_ * 7 * page_bytes, .small_page_bytes = 0};
      if (seed_ % 4 == 0) options.observer = std::make_shared<testing::EvictEverything>();
      Session session(options);
      std::vector<std::thread> others;
      for (int64_t t = 0; t < threads_; ++t)
        others.emplace_back([&, t] {
          at::set_num_threads(1);  // applies to the calling thread
          auto entry = session.enter();
          try {
            together[static_cast<size_t>(t)] = work(t);
          } catch (const std::exception& error) {
            errors[static_cast<size_t>(t)] = error.what();
          }
        });
      for (std::thread& other : others) other.join();
    }
    for (const std::string& error : errors)
      if (!error.empty()) return error;
    for (size_t t = 0; t < alone.size(); ++t)
      if (!at::equal(alone[t], together[t])) return str("thread ", t, " of ", threads_, " got other bits than alone");
    return {};
  }

 private:
  static constexpr int64_t kEdge = 40;

  /// Returns the result of a chain of operators, forward and backward. Some of its tensors are kept for later.
  at::Tensor work(int64_t thread) const {
    std::mt19937_64 random(seed_ * 100 + static_cast<uint64_t>(thread));
    std::vector<at::Tensor> kept{inputs_[static_cast<size_t>(thread)].clone()};
    for (int i = 0; i < 60; ++i) {
      at::Tensor x = kept[random() % kept.size()].detach().requires_grad_();
      at::Tensor y = at::tanh(x.mm(weights_[random() % weights_.size()])) + kept[random() % kept.size()];
      if (random() % 3 == 0) y.square().sum().backward();
      at::Tensor next = (x.grad().defined() ? y + x.grad() : y).detach() * 0.5;
      if (kept.size() < 12)
        kept.push_back(next);
      else
        kept[random() % kept.size()] = next;
    }
    at::Tensor sum = at::zeros({kEdge, kEdge});
    for (size_t i = 0; i < kept.size(); ++i) sum += kept[i] * static_cast<double>(i + 1);
    return sum;
  }

  const uint64_t seed_;
  const int64_t threads_;
  std::vector<at::Tensor> weights_, inputs_;
};

struct RandomModelsTest : ::testing::Test {
  RandomModelsTest() {
    CpuDevice::instance();
    at::set_num_threads(1);  // the shapes are small
    at::globalContext().setDeterministicAlgorithms(true, false);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
  }
};

TEST_F(RandomModelsTest, ThreadsThatShareASessionGetWhatTheyGetAlone) {
  testing::run_random_cases(20, [](uint64_t seed, const CaseLimits&) { return ThreadsCase(seed).run(); });
}

TEST_F(RandomModelsTest, PagingChangesNoBitUnderAnyFeasibleBudget) {
  testing::run_random_cases(20, [](uint64_t seed, const CaseLimits& limits) { return ModelCase(seed, limits).run(); });
}

}  // namespace
}  // namespace spillway
