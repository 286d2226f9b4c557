#include "ddl/ordered_sum.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace spillway::ddl {
namespace {

std::vector<float> values(int64_t count, float scale) {
  std::vector<float> result(count);
  for (int64_t k = 0; k < count; ++k) result[k] = scale / static_cast<float>(k + 1);
  return result;
}

TEST(OrderedSumTest, AddsFromTheLeftAndDividesOnce) {
  for (const int64_t count : {0, 1, 3, 1023, 1024, 1025, 5000}) {
    const auto a = values(count, 1.0f);
    const auto b = values(count, 1e7f);
    const auto c = values(count, -3.0f);
    for (const float divisor : {1.0f, 2.0f, 3.0f, 7.0f, 64.0f}) {
      std::vector<float> sum(count);
      ordered_sum(sum.data(), std::array{a.data(), b.data(), c.data()}, count, divisor);
      for (int64_t k = 0; k < count; ++k) EXPECT_EQ(sum[k], ((a[k] + b[k]) + c[k]) / divisor);
    }
  }
}

TEST(OrderedSumTest, TheTargetMayBeAnyOfTheTerms) {
  const auto a = values(3000, 1.0f);
  const auto b = values(3000, 1e7f);
  std::vector<float> first = a;
  std::vector<float> second = b;
  ordered_sum(first.data(), std::array<const float*, 2>{first.data(), b.data()}, 3000, 1.0f);
  ordered_sum(second.data(), std::array<const float*, 2>{a.data(), second.data()}, 3000, 1.0f);
  EXPECT_EQ(first, second);
}

TEST(OrderedSumTest, OneTermIsCopiedAndDivided) {
  const auto a = values(100, 1.0f);
  std::vector<float> sum(100);
  ordered_sum(sum.data(), std::array{a.data()}, 100, 3.0f);
  for (int64_t k = 0; k < 100; ++k) EXPECT_EQ(sum[k], a[k] / 3.0f);
}

}  // namespace
}  // namespace spillway::ddl
