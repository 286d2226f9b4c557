// Tests of the inverses in use and those that take their places.
#include "kfac/refresh/layer_inverses.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "kfac/make_setup.h"
#include "tests/kfac/small_mlp.h"

namespace spillway::kfac {
namespace {

class LayerInversesTest : public ::testing::Test {
 protected:
  LayerInversesTest()
      : setup_(make_setup([this](const KfacOptions& agreed) { return find_layers(*model_, agreed); }, {}, nullptr, {})),
        batches_(batches_of(setup_)),
        inverses_(setup_, batches_) {}

  torch::nn::Sequential model_ = small_mlp();
  kfac::Setup setup_;
  std::vector<LayerBatch> batches_;
  LayerInverses inverses_;
};

TEST_F(LayerInversesTest, ALateRenewalLeavesTheInverseInUse) {
  const auto before = inverses_.in_use(1).held.front().clone();
  const int64_t version = inverses_.version(1);
  inverses_.renewed(1, /*is_late=*/true).held.front().zero_();
  EXPECT_TRUE(inverses_.in_use(1).held.front().equal(before));
  EXPECT_EQ(inverses_.version(1), version);

  inverses_.adopt(1);
  EXPECT_TRUE(inverses_.in_use(1).held.front().eq(0).all().item<bool>());
  EXPECT_TRUE(inverses_.next(1).held.empty());
  EXPECT_GT(inverses_.version(1), version);
  EXPECT_EQ(inverses_.version(0), version) << "of another layer";
}

TEST_F(LayerInversesTest, ANextInverseBeginsAsACopy) {
  inverses_.renewed(0, /*is_late=*/true);
  ASSERT_EQ(inverses_.next(0).held.size(), inverses_.in_use(0).held.size());
  for (size_t t = 0; t < inverses_.next(0).held.size(); ++t) {
    EXPECT_TRUE(inverses_.next(0).held[t].equal(inverses_.in_use(0).held[t]));
    EXPECT_FALSE(inverses_.next(0).held[t].is_alias_of(inverses_.in_use(0).held[t]));
  }
}

TEST_F(LayerInversesTest, WhateverChangesAnInverseChangesItsVersion) {
  const int64_t version = inverses_.version(0);
  inverses_.adopt(0);
  EXPECT_EQ(inverses_.version(0), version) << "there was no next one";
  inverses_.renewed(0, /*is_late=*/false);
  EXPECT_GT(inverses_.version(0), version);
  const int64_t renewed = inverses_.version(0);
  inverses_.overwritten();
  EXPECT_GT(inverses_.version(0), renewed);
}

}  // namespace
}  // namespace spillway::kfac
