#include "runtime/planning/largest_edge.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/error.h"

namespace spillway {
using namespace runtime;
namespace {

EdgeNeed cubic(int64_t edge) {
  return {.peak_bytes = 10 * edge * edge * edge, .floor_bytes = edge * edge * edge};
}

TEST(LargestEdgeTest, FindsTheLargestThatFitsAndMeasuresEachOnce) {
  std::vector<int64_t> asked;
  LargestEdge largest(16, 256, [&](int64_t edge) {
    asked.push_back(edge);
    return cubic(edge);
  });
  for (int64_t edge = 16; edge <= 256; edge += 16) {
    EXPECT_EQ(largest.within(edge * edge * edge, &EdgeNeed::floor_bytes), edge);
    EXPECT_EQ(largest.within(edge * edge * edge - 1, &EdgeNeed::floor_bytes), edge - 16);
    EXPECT_EQ(largest.within(10 * edge * edge * edge, &EdgeNeed::peak_bytes), edge);
  }
  EXPECT_EQ(largest.within(1, &EdgeNeed::floor_bytes), 0);
  EXPECT_EQ(largest.within(int64_t{1} << 60, &EdgeNeed::peak_bytes), 256);
  EXPECT_EQ(asked.size(), 16u);
  EXPECT_EQ(largest.measured().size(), 16u);
}

TEST(LargestEdgeTest, AsksForFewEdgesWhenFewAreNeeded) {
  int asked = 0;
  LargestEdge largest(16, 1024, [&](int64_t edge) {
    ++asked;
    return cubic(edge);
  });
  EXPECT_EQ(largest.within(200 * 200 * 200, &EdgeNeed::floor_bytes), 192);
  EXPECT_LE(asked, 7);
}

TEST(LargestEdgeTest, TheHostsMemoryIsTheLimit) {
  EXPECT_EQ(edge_for_memory(8000, 1000, 100, 16), 192);
  EXPECT_EQ(edge_for_memory(10, 1000, 100, 16), 16);
  EXPECT_THROW(LargestEdge(16, 15, cubic), BadRequest);
}

}  // namespace
}  // namespace spillway
