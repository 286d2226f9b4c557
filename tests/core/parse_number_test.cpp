#include "core/parse_number.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace spillway {
namespace {

TEST(ParseNumberTest, TakesTheWholeTextAndNothingElse) {
  EXPECT_EQ(parse_number<int64_t>("42"), 42);
  EXPECT_EQ(parse_number<int64_t>("-7"), -7);
  EXPECT_EQ(parse_number<double>("0.25"), 0.25);
  EXPECT_EQ(parse_number<double>("1e-3"), 1e-3);
  for (const char* text : {"", " 42", "42 ", "+42", "4x", "x", "0x10", "1.5"})
    EXPECT_EQ(parse_number<int64_t>(text), std::nullopt) << text;
  for (const char* text : {"", "1.5.", "half", "1,5"}) EXPECT_EQ(parse_number<double>(text), std::nullopt) << text;
}

TEST(ParseNumberTest, RefusesWhatTheTypeCannotHold) {
  EXPECT_EQ(parse_number<int8_t>("127"), 127);
  EXPECT_EQ(parse_number<int8_t>("128"), std::nullopt);
  EXPECT_EQ(parse_number<uint64_t>("-1"), std::nullopt);
  EXPECT_EQ(parse_number<int64_t>("9223372036854775808"), std::nullopt);
  EXPECT_EQ(parse_number<double>("1e999"), std::nullopt);
}

}  // namespace
}  // namespace spillway
