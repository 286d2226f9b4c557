// Tests of how running averages of factors take in new ones.
#include "kfac/factors/running_averages.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kfac/plan/layer_shape.h"

namespace spillway::kfac {
namespace {

constexpr double kDecay = 0.9;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();

/// Returns a running average of matrices [count, side, side] that were never seen.
StoredTriangle unseen(int64_t count, int64_t side, at::ScalarType type = at::kDouble,
                      FactorDtype storage = FactorDtype::fp32) {
  const FactorShape shape{.role = FactorRole::input, .side = side, .count = count};
  return {at::zeros(shape.triangle_sizes(), storage_type(storage, type)),
          storage == FactorDtype::fp32 ? at::Tensor() : at::zeros({count, side}, type)};
}

at::Tensor eye(double scale, int64_t count = 1, int64_t side = 2) {
  return at::eye(side, at::kDouble).mul(scale).expand({count, side, side});
}

/// Returns a Gram matrix.
at::Tensor random_factor(int64_t count, int64_t side, at::ScalarType type = at::kDouble) {
  const auto rows = at::randn({count, side, side}, type);
  return rows.bmm(rows.transpose(1, 2));
}

at::Tensor filled_with(const at::Tensor& factor, double number) {
  auto bad = factor.clone();
  bad.select(1, factor.size(1) - 1).fill_(number);
  bad.select(2, factor.size(2) - 1).fill_(number);
  return bad;
}

/// A count of dropped factors, and updates that add to it.
struct Dropped {
  at::Tensor count = at::zeros({}, at::kLong);

  void update(const StoredTriangle& running, const at::Tensor& fresh, double start = 0) const {
    update_running_averages({{running, fresh.clone(), start}}, kDecay, count);
  }
};

TEST(RunningAveragesTest, StartAtTheFirstFactorAndThenDecay) {
  const Dropped dropped;
  const StoredTriangle running = unseen(1, 2);
  dropped.update(running, eye(3));
  EXPECT_TRUE(running.load().equal(eye(3)));
  dropped.update(running, eye(5));
  EXPECT_TRUE(at::allclose(running.load(), 0.9 * eye(3) + 0.1 * eye(5)));
  EXPECT_EQ(dropped.count.item<int64_t>(), 0);
}

TEST(RunningAveragesTest, StartAtTheIdentityWhereTheConventionSaysSo) {
  const Dropped dropped;
  const StoredTriangle running = unseen(2, 3);
  const auto start = eye(4, 2, 3), fresh = random_factor(2, 3);
  dropped.update(running, at::zeros({2, 3, 3}, at::kDouble), 4);
  EXPECT_EQ(running.load().abs().max().item<double>(), 0) << "a factor that nobody has seen stays zero";
  dropped.update(running, fresh, 4);
  EXPECT_TRUE(at::allclose(running.load(), 0.9 * start + 0.1 * fresh));
  dropped.update(running, fresh, 4);
  EXPECT_TRUE(at::allclose(running.load(), 0.81 * start + 0.19 * fresh));
}

TEST(RunningAveragesTest, DropAndCountWhatIsNotFinite) {
  for (const double bad : {kNan, kInfinity})
    for (const auto storage : {FactorDtype::fp32, FactorDtype::bf16}) {
      const Dropped dropped;
      const StoredTriangle running = unseen(1, 2, at::kDouble, storage);
      dropped.update(running, eye(1));
      dropped.update(running, filled_with(eye(1), bad));
      EXPECT_TRUE(running.load().equal(eye(1)));
      EXPECT_EQ(dropped.count.item<int64_t>(), 1);
    }
}

TEST(RunningAveragesTest, AreNotDilutedByAStepWithoutStatistics) {
  const Dropped dropped;
  const StoredTriangle running = unseen(1, 2);
  dropped.update(running, eye(1));
  dropped.update(running, eye(0));
  EXPECT_TRUE(running.load().equal(eye(1)));
  EXPECT_EQ(dropped.count.item<int64_t>(), 0);
}

/// Updates a whole matrix, and decides on the host.
void update_whole(const at::Tensor& running, const at::Tensor& fresh, double start) {
  const double trace = fresh.diagonal(0, 1, 2).sum().item<double>();
  if (!std::isfinite(trace) || trace == 0) return;
  const bool is_new = running.eq(0).all().item<bool>();
  if (is_new) running.diagonal(0, 1, 2).add_(start);
  running.lerp_(fresh, at::full({}, is_new && start == 0 ? 1 : 1 - kDecay, running.options()));
}

TEST(RunningAveragesTest, GiveATriangleTheBitsOfAWholeMatrix) {
  at::manual_seed(1);
  for (const double start : {0.0, 2.0})
    for (const int64_t side : {1, 4, 9}) {
      const Dropped dropped;
      const auto whole = at::zeros({2, side, side});
      const StoredTriangle running = unseen(2, side, at::kFloat);
      for (int step = 0; step < 5; ++step) {
        auto fresh = random_factor(2, side, at::kFloat);
        fresh = fresh + fresh.transpose(1, 2);
        if (step == 2) fresh.zero_();
        if (step == 3) fresh = filled_with(fresh, kInfinity);
        dropped.update(running, fresh, start);
        update_whole(whole, fresh, start);
        EXPECT_TRUE(running.load().equal(whole)) << side << ' ' << step;
      }
      EXPECT_EQ(dropped.count.item<int64_t>(), 1);
    }
}

TEST(RunningAveragesTest, GiveSeveralAtOnceTheBitsThatTheyGetAlone) {
  at::manual_seed(2);
  for (const auto storage : {FactorDtype::fp32, FactorDtype::fp16}) {
    const Dropped dropped, of_all;
    std::vector<StoredTriangle> alone, together;
    std::vector<double> starts;
    for (const int64_t side : {1, 3, 4, 8, 3, 4}) {
      alone.push_back(unseen(2, side, at::kFloat, storage));
      together.push_back(unseen(2, side, at::kFloat, storage));
      starts.push_back(side == 4 ? 3 : 0);
    }
    for (size_t step = 0; step < 5; ++step) {
      std::vector<AverageUpdate> updates;
      for (size_t i = 0; i < alone.size(); ++i) {
        auto fresh = random_factor(2, together[i].entries.size(1) / 2 + together[i].entries.size(2), at::kFloat);
        if (step == i) fresh.zero_();
        if (step == i + 1) fresh = filled_with(fresh, kNan);
        dropped.update(alone[i], fresh, starts[i]);
        updates.push_back({together[i], fresh, starts[i]});
      }
      update_running_averages(updates, kDecay, of_all.count);
      for (size_t i = 0; i < alone.size(); ++i)
        EXPECT_TRUE(together[i].load().equal(alone[i].load())) << "factor " << i << ", step " << step;
    }
    EXPECT_EQ(of_all.count.item<int64_t>(), 4);
    EXPECT_EQ(dropped.count.item<int64_t>(), 4);
  }
}

}  // namespace
}  // namespace spillway::kfac
