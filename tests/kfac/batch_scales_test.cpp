// Tests of the scales between eigenbases that stay from step to step.
#include "kfac/batch_scales.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "kfac/make_setup.h"
#include "tests/kfac/small_mlp.h"

namespace spillway::kfac {
namespace {

class BatchScalesTest : public ::testing::Test {
 protected:
  BatchScalesTest() { begin_step(); }

  void begin_step() {
    dampings_.set();
    scales_.begin_step();
  }
  /// Overwrites the first layer's eigenvalues.
  void fill(const LayerInverse& inverse) const {
    for (const at::Tensor& values : inverse.values(setup_.shape(0))) values.fill_(3);
  }
  at::Tensor kept(size_t layer) { return scales_.of(layer).weight.kept; }
  /// Returns the scales of the layer as its inverse and the damping give them now.
  at::Tensor expected(size_t layer) const {
    const auto& inverse = inverses_.in_use(layer);
    return scales_of(setup_.shape(layer), inverse, dampings_.now().of(layer)).weight.kept;
  }
  /// Expects the scales to be as an inverse and a damping have them, and others than `before`.
  void expect_renewed(size_t layer, const at::Tensor& before) {
    EXPECT_FALSE(kept(layer).equal(before));
    EXPECT_TRUE(kept(layer).equal(expected(layer)));
  }

  torch::nn::Sequential model_ = small_mlp();
  kfac::Setup setup_ = make_setup([this](const KfacOptions& agreed) { return find_layers(*model_, agreed); },
                                  {.damping_scope = DampingScope::layer, .batch_elements = 0}, nullptr, {});
  std::vector<LayerBatch> batches_ = batches_of(setup_);
  Tally tally_;
  StagedFactors staged_;
  LayerInverses inverses_{setup_, batches_};
  LayerDampings dampings_{setup_, staged_, tally_};
  BatchScales scales_{setup_, batches_, inverses_, dampings_};
};

TEST_F(BatchScalesTest, StayWhileNothingChanges) {
  EXPECT_TRUE(kept(0).equal(expected(0)));
  kept(0).fill_(7);
  ++tally_.counters.steps;
  begin_step();
  EXPECT_TRUE(kept(0).eq(7).all().item<bool>()) << "nobody makes them anew";
}

TEST_F(BatchScalesTest, HaveTheirMemoryFromTheStart) {
  int64_t bytes = 0;
  for (const Layer& layer : setup_.layers) bytes += bytes_of(scale_tensors(layer.shape), FactorDtype::fp32, 8);
  EXPECT_EQ(scales_.bytes(), bytes);
  const auto before = kept(0);
  fill(inverses_.renewed(0, /*is_late=*/false));
  begin_step();
  EXPECT_TRUE(kept(0).is_alias_of(before));
}

TEST_F(BatchScalesTest, FollowTheDamping) {
  fill(inverses_.renewed(0, /*is_late=*/false));
  begin_step();
  const auto before = kept(0).clone();
  tally_.counters.damping_scale = 2;
  begin_step();
  expect_renewed(0, before);
}

TEST_F(BatchScalesTest, FollowTheirOwnLayersInverse) {
  const auto before = kept(0).clone();
  kept(1).fill_(7);
  fill(inverses_.renewed(0, /*is_late=*/false));
  begin_step();
  expect_renewed(0, before);
  EXPECT_TRUE(kept(1).eq(7).all().item<bool>()) << "of another layer";
}

TEST_F(BatchScalesTest, FollowALateInverseWhenItIsAdopted) {
  const auto before = kept(0).clone();
  fill(inverses_.renewed(0, /*is_late=*/true));
  begin_step();
  EXPECT_TRUE(kept(0).equal(before));
  inverses_.adopt(0);
  begin_step();
  expect_renewed(0, before);
}

TEST_F(BatchScalesTest, FollowTensorsThatAreOverwritten) {
  const auto before = kept(0).clone();
  fill(inverses_.in_use(0));
  inverses_.overwritten();
  begin_step();
  expect_renewed(0, before);
}

}  // namespace
}  // namespace spillway::kfac
