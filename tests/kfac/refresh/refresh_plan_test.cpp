// Tests of what a step refreshes, and in which pieces.
#include "kfac/refresh/refresh_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "kfac/make_setup.h"
#include "tests/kfac/small_mlp.h"

namespace spillway::kfac {
namespace {

using What = RefreshWork::What;

Setup setup_of(KfacOptions options) {
  const auto model = small_mlp();
  return make_setup([&](const KfacOptions& agreed) { return find_layers(*model, agreed); }, std::move(options), nullptr,
                    {});
}

int64_t count(const std::vector<RefreshWork>& pieces, What what) {
  return std::count_if(pieces.begin(), pieces.end(), [&](const RefreshWork& piece) { return piece.what == what; });
}

/// Options in which the layers take turns, and are renewed a step late, in pieces of two columns.
KfacOptions late_options() {
  KfacOptions options{.method = Method::pi, .curvature_delay = 1, .panel_columns = 2};
  options.layer_curvature = {{.layer = "0", .interval = 2, .slot = 0}, {.layer = "2", .interval = 2, .slot = 1}};
  return options;
}

TEST(RefreshPlanTest, ARefreshOfItsOwnStepRenewsWholeFactors) {
  const kfac::Setup setup = setup_of(late_options());
  const RefreshPlan plan(setup);
  EXPECT_FALSE(plan.is_late(0));
  const auto at_once = plan.pieces(/*step=*/0, /*micro_batches=*/0);
  EXPECT_EQ(count(at_once, What::renew), 4) << "factors of two layers";
  EXPECT_EQ(count(at_once, What::statistics), 0);

  EXPECT_TRUE(plan.is_late(3));
  const auto late = plan.pieces(/*step=*/3, /*micro_batches=*/2);
  EXPECT_GT(count(late, What::renew), 2) << "factors of one layer";
  EXPECT_EQ(count(late, What::statistics), 2) << "of two micro-batches";
}

TEST(RefreshPlanTest, AStepRefreshesTheLayersOfItsSlot) {
  const kfac::Setup setup = setup_of(late_options());
  const RefreshPlan plan(setup);
  EXPECT_EQ(plan.layers(plan.set_of(2)), std::vector<size_t>{0});
  EXPECT_EQ(plan.layers(plan.set_of(3)), std::vector<size_t>{1});
  EXPECT_TRUE(plan.renews(1, /*steps=*/4)) << "step 3 has renewed it for step 4";
  EXPECT_FALSE(plan.renews(1, /*steps=*/3));
}

TEST(RefreshPlanTest, TheWorkOfAStepIsNamed) {
  const kfac::Setup setup = setup_of({.factor_interval = 2, .inverse_interval = 4, .burn_in = 0});
  const RefreshPlan plan(setup);
  KfacCounters counters;
  EXPECT_EQ(plan.work(counters).kind, "factor+decompose");
  counters = {.steps = 1, .last_factor_step = 0, .last_decomposition_step = 0};
  EXPECT_EQ(plan.work(counters).kind, "plain");
  counters.steps = 2;
  EXPECT_EQ(plan.work(counters).kind, "factor");
  EXPECT_TRUE(plan.work(counters).updates_factors);
  EXPECT_FALSE(plan.work(counters).decomposes);
}

}  // namespace
}  // namespace spillway::kfac
