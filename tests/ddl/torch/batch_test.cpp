#include "ddl/torch/batch.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "ddl/torch/tensor_fusion.h"

namespace spillway::ddl {
namespace {

std::vector<Batch> batches_of_parts(const at::Tensor& vector, const std::vector<int>& order) {
  std::vector<Batch> batches;
  for_each_batch_of_parts(vector, order, [&](const Batch& batch) { batches.push_back(batch); });
  return batches;
}

TEST(BatchTest, BlocksHoldEveryRanksPartInTheGivenOrder) {
  const at::Tensor vector = at::arange(10, at::kFloat);  // parts [0, 3), [3, 6) and [6, 10) of three ranks
  const auto batches = batches_of_parts(vector, {2, 0, 1});
  ASSERT_EQ(batches.size(), 1);
  const at::Tensor buffer = at::full({12}, -1, at::kLong);
  pack(batches[0], buffer);
  EXPECT_TRUE(at::equal(buffer, at::tensor({6, 7, 8, 9, 0, 1, 2, -1, 3, 4, 5, -1}, at::kLong)));
  EXPECT_EQ(batches[0].count(), 10);
  unpack(batches[0].within({{2, 4}, {9, 10}}), buffer.neg());
  EXPECT_TRUE(at::equal(vector, at::tensor({0, 1, -2, -3, 4, 5, 6, 7, 8, -9}, at::kFloat)));
}

TEST(BatchTest, LargeVectorsGoInBatchesOfWhichEveryRankHasAShare) {
  const int64_t count = 3 * (kFusionBytes / 8) / 2 + 1;
  const at::Tensor vector = at::zeros({count}, at::kLong);
  const auto batches = batches_of_parts(vector, {1, 0, 3, 2});
  ASSERT_EQ(batches.size(), 2);
  for (const Batch& batch : batches) {
    EXPECT_LE(batch.size * 8, kFusionBytes);
    EXPECT_EQ(batch.pieces.size(), 4);
    unpack(batch, at::ones({batch.size}, at::kLong) + at::zeros({1}, at::kLong));
  }
  EXPECT_TRUE(vector.eq(1).all().item<bool>());
}

TEST(BatchTest, WhatLiesSideBySideIsOneCopy) {
  EXPECT_EQ(batches_of_parts(at::zeros({12}), {0, 1, 2, 3})[0].pieces.size(), 1);
  EXPECT_EQ(batches_of_parts(at::zeros({12}), {0, 2, 1, 3})[0].pieces.size(), 4);
  EXPECT_EQ(batches_of_parts(at::zeros({10}), {0, 1, 2, 3})[0].pieces.size(), 3) << "2 and 3, 2, 3: a gap after the 2s";
}

TEST(BatchTest, AFullBufferIsOneBatchOfAnyNumberOfParts) {
  EXPECT_EQ(batches_of_parts(at::zeros({kFusionBytes / 4}), {0, 1, 2}).size(), 1);
}

}  // namespace
}  // namespace spillway::ddl
