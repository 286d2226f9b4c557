// Tests of cuts against all cuts that there are.
#include "pipe/cut.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "core/error.h"

namespace spillway::pipe {
namespace {

struct Stages {
  double longest = 0;
  int64_t most_bytes = 0;
};

Stages stages_of(const std::vector<Part>& parts, const std::vector<int>& sizes) {
  Stages all;
  size_t next = 0;
  for (int size : sizes) {
    Part sum;
    for (int i = 0; i < size; ++i, ++next) sum.seconds += parts[next].seconds, sum.bytes += parts[next].bytes;
    all.longest = std::max(all.longest, sum.seconds);
    all.most_bytes = std::max(all.most_bytes, sum.bytes);
  }
  return all;
}

/// Returns the shortest longest stage of all cuts within the limit; infinity where there is none.
double shortest(const std::vector<Part>& parts, int stages, int64_t limit, std::vector<int>& sizes, int left) {
  if (stages == 1) {
    sizes.push_back(left);
    const Stages all = stages_of(parts, sizes);
    sizes.pop_back();
    return all.most_bytes <= limit ? all.longest : std::numeric_limits<double>::infinity();
  }
  double least = std::numeric_limits<double>::infinity();
  for (int size = 1; size <= left - stages + 1; ++size) {
    sizes.push_back(size);
    least = std::min(least, shortest(parts, stages - 1, limit, sizes, left - size));
    sizes.pop_back();
  }
  return least;
}

TEST(CutTest, TheLongestStageIsAsShortAsCanBe) {
  std::mt19937 random(3);
  const auto number = [&](int low, int high) { return std::uniform_int_distribution(low, high)(random); };
  int refused = 0;
  for (int i = 0; i < 300; ++i) {
    std::vector<Part> parts(number(1, 9));
    for (Part& part : parts) part = {std::uniform_real_distribution(0.1, 2.0)(random), number(1, 20)};
    const int stages = number(1, static_cast<int>(parts.size()));
    const int64_t limit = number(15, 60);
    std::vector<int> none;
    const double best = shortest(parts, stages, limit, none, static_cast<int>(parts.size()));
    if (best == std::numeric_limits<double>::infinity()) {
      EXPECT_THROW((void)cut(parts, stages, limit), BadRequest);
      ++refused;
      continue;
    }
    const std::vector<int> sizes = cut(parts, stages, limit);
    ASSERT_EQ(std::ssize(sizes), stages);
    EXPECT_GE(*std::min_element(sizes.begin(), sizes.end()), 1);
    EXPECT_LE(stages_of(parts, sizes).most_bytes, limit);
    EXPECT_NEAR(stages_of(parts, sizes).longest, best, 1e-12);
  }
  EXPECT_GT(refused, 10);
  EXPECT_LT(refused, 200);
}

TEST(CutTest, EqualPartsMakeEqualStagesAndTheLastOnesAreLonger) {
  const std::vector<Part> parts(12, {1, 1});
  EXPECT_EQ(cut(parts, 4), (std::vector<int>{3, 3, 3, 3}));
  EXPECT_EQ(cut(parts, 5), (std::vector<int>{2, 2, 2, 3, 3}));
}

TEST(CutTest, WhatCannotBeCutIsRefused) {
  const std::vector<Part> parts = {{1, 5 << 20}, {1, 3 << 20}, {1, 4 << 20}};
  EXPECT_THROW((void)cut(parts, 4), BadRequest);
  EXPECT_THROW((void)cut(parts, 0), BadRequest);
  try {
    (void)cut(parts, 2, 6 << 20);
    FAIL() << "two stages hold 7 MiB at least";
  } catch (const BadRequest& error) {
    EXPECT_NE(std::string(error.what()).find("is 7.00 MiB"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace spillway::pipe
