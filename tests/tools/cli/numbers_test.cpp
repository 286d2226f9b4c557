#include "tools/cli/numbers.h"

#include <gtest/gtest.h>

#include <optional>

namespace spillway::tools {
namespace {

/// Returns why `text` is refused as a flag's value; empty when it is read into `value`.
template <class Value>
std::string refusal(Value& value, const std::string& text) {
  CLI::App app;
  add_number(app, "--n", value, "a number")->delimiter(',');
  try {
    app.parse(std::vector<std::string>{text, "--n"});  // in reverse
  } catch (const CLI::Error& error) {
    return error.what();
  }
  return "";
}

TEST(NumbersTest, AreReadInBase10) {
  int64_t whole = 0;
  EXPECT_EQ(refusal(whole, "010"), "");
  EXPECT_EQ(whole, 10);
  EXPECT_EQ(refusal(whole, "-9223372036854775808"), "");
  EXPECT_EQ(whole, INT64_MIN);
  uint64_t seed = 0;
  EXPECT_EQ(refusal(seed, "18446744073709551615"), "");
  EXPECT_EQ(seed, UINT64_MAX);
  double real = 0;
  EXPECT_EQ(refusal(real, "007.5e-1"), "");
  EXPECT_EQ(real, 0.75);
  std::optional<int> maybe;
  EXPECT_EQ(refusal(maybe, "08"), "");
  EXPECT_EQ(maybe, 8);
  std::vector<int64_t> list;
  EXPECT_EQ(refusal(list, "1,010"), "");
  EXPECT_EQ(list, (std::vector<int64_t>{1, 10}));
}

TEST(NumbersTest, AreRefusedWhereNoneIsMeantOrItDoesNotFit) {
  int64_t whole = 3;
  for (const char* wrong : {"0x3", " 5", "+5", "5 ", "5.0", "1e3", "", "9223372036854775808", "99999999999999999999"}) {
    const std::string said = refusal(whole, wrong);
    EXPECT_NE(said.find(std::string("--n: '") + wrong + "' is no whole number"), std::string::npos) << said;
    EXPECT_NE(said.find("up to 9223372036854775807"), std::string::npos) << said;
  }
  EXPECT_EQ(whole, 3);
  int small = 3;
  EXPECT_NE(refusal(small, "2147483648"), "");
  uint64_t seed = 3;
  EXPECT_NE(refusal(seed, "-1").find("'-1' is no whole number from 0 on"), std::string::npos);
  std::optional<double> real;
  for (const char* wrong : {"0x1p3", " .5", "+1", "1e999", "one"}) EXPECT_NE(refusal(real, wrong), "") << wrong;
  EXPECT_FALSE(real);
}

TEST(NumbersTest, OutsideARangeAreRefusedAndSoIsNaN) {
  for (const char* wrong : {"nan", "-nan", "0", "11", "inf", "x"}) {
    std::string text = wrong;
    EXPECT_NE(between(0.5, 10)(text), "") << wrong;
  }
  std::string text = "10";
  EXPECT_EQ(between(0.5, 10)(text), "");
  EXPECT_EQ(at_least(0)(text = "0"), "");
  EXPECT_NE(at_least(0)(text = "-1").find("from 0 on"), std::string::npos);
}

}  // namespace
}  // namespace spillway::tools
