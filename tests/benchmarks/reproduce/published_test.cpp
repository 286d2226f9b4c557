// Tests of the numbers that papers print.
#include "benchmarks/reproduce/published.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace spillway::runtime {
namespace {

TEST(PublishedTest, FindsANumberByPaperPlaceRowAndColumn) {
  EXPECT_EQ(PublishedTable("KAISA", "table 5").at("ResNet-50", "SGD absolute"), 4762);
  EXPECT_EQ(PublishedTable("SC20", "VI.C.4").at("ResNet-50, 16 GPUs", "smallest load (factor elements of a worker)"),
            1.46e6);
  EXPECT_EQ(PublishedTable("LMSDDL", "table 1").at("2 GPUs, 1 nodes", "epoch"), 3268.65);
}

TEST(PublishedTest, TakesOneNumberOfTwoEqualRows) {
  EXPECT_EQ(PublishedTable("LMSDDL", "2.1, fig 1").at("DDL against ncclAllReduce", "faster"), 1.6);
}

TEST(PublishedTest, RefusesARowThatIsNotThereAndAFormula) {
  EXPECT_THROW(PublishedTable("KAISA", "table 5").at("ResNet-51", "SGD absolute"), std::logic_error);
  EXPECT_THROW(PublishedTable("KAISA", "table 55").at("ResNet-50", "SGD absolute"), std::logic_error);
  EXPECT_THROW(PublishedTable("PIPEFISHER", "3.3").at("performance model", "T_bubble"), std::logic_error);
}

}  // namespace
}  // namespace spillway::runtime
