#include "core/median.h"

#include <gtest/gtest.h>

namespace spillway {

TEST(MedianTest, IsTheMiddleValueInWhateverOrder) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({7}), 7);
}

TEST(MedianTest, IsTheMeanOfTheMiddleTwoOfAnEvenNumber) {
  EXPECT_EQ(median({4, 1, 3, 100}), 3.5);
}

TEST(MedianTest, IsZeroOfNothing) {
  EXPECT_EQ(median({}), 0);
}

}  // namespace spillway
