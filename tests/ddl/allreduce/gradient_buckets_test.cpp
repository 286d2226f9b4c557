#include "ddl/allreduce/gradient_buckets.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>

namespace spillway::ddl {
namespace {

std::vector<size_t> in_order(size_t count) {
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  return order;
}

TEST(GradientBucketsTest, EveryElementIsInOneBucketOnce) {
  const std::vector<GradientShape> shapes{{Element::float32, 700},  {Element::float32, 0},    {Element::float32, 3},
                                          {Element::float64, 1000}, {Element::bfloat16, 513}, {Element::float32, 256}};
  const std::vector<size_t> order{5, 0, 3, 1, 4, 2};
  for (const int64_t bucket_bytes : {1, 8, 1024, 4096, 1 << 20}) {
    const auto buckets = cut_into_buckets(shapes, order, bucket_bytes);
    std::map<size_t, int64_t> next;
    std::vector<size_t> seen;
    for (const GradientBucket& bucket : buckets) {
      int64_t offset = 0;
      for (const auto& piece : bucket.pieces) {
        EXPECT_EQ(shapes[piece.parameter].element, bucket.element);
        EXPECT_EQ(piece.range.begin, next[piece.parameter]);
        EXPECT_GT(piece.range.size(), 0);
        EXPECT_EQ(piece.offset, offset);
        next[piece.parameter] = piece.range.end;
        offset += piece.range.size();
        if (seen.empty() || seen.back() != piece.parameter) seen.push_back(piece.parameter);
      }
      EXPECT_EQ(bucket.count, offset + bucket.flags);
      EXPECT_LE(offset * element_bytes(bucket.element), std::max<int64_t>(bucket_bytes, element_bytes(bucket.element)));
      EXPECT_EQ(bucket.flags, &bucket == &buckets.back() ? 6 : 0);
    }
    for (size_t i = 0; i < shapes.size(); ++i) EXPECT_EQ(next[i], shapes[i].count);
    EXPECT_EQ(seen, (std::vector<size_t>{5, 0, 3, 4, 2}));
  }
}

TEST(GradientBucketsTest, SmallOnesTravelTogetherAndLargeOnesInPieces) {
  const std::vector<GradientShape> shapes{{Element::float32, 100}, {Element::float32, 100}, {Element::float32, 1000}};
  const auto buckets = cut_into_buckets(shapes, in_order(3), 1600);
  ASSERT_EQ(buckets.size(), 3u);
  EXPECT_EQ(buckets[0].pieces.size(), 3u);
  EXPECT_EQ(buckets[0].count, 400);
  EXPECT_EQ(buckets[2].count, 400 + 3);
}

TEST(GradientBucketsTest, NoParametersMakeNoBucketsAndEmptyOnesCarryFlags) {
  EXPECT_TRUE(cut_into_buckets({}, {}, 1024).empty());
  const std::vector<GradientShape> empty{{Element::float32, 0}, {Element::float64, 0}};
  const auto buckets = cut_into_buckets(empty, in_order(2), 1024);
  ASSERT_EQ(buckets.size(), 1u);
  EXPECT_EQ(buckets[0].count, 2);
}

}  // namespace
}  // namespace spillway::ddl
