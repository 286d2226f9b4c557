#include "core/json_text.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/refusal.h"

namespace spillway {
namespace {

using testing::expect_refusal;

TEST(JsonTextTest, ReadsWhatOthersRead) {
  const std::string text = R"({"a": [1, 2.5, {"a": null}], "b": {"a": "x"}})";
  EXPECT_EQ(parse_json(text), nlohmann::json::parse(text));
  EXPECT_EQ(parse_json(" 7 "), 7);
  EXPECT_EQ(parse_json("\xEF\xBB\xBF{\r\n\"a\": 7}\r\n").at("a"), 7) << "an editor's byte order mark";
}

TEST(JsonTextTest, RefusesWhatIsMalformedDeepOrAmbiguous) {
  for (const char* wrong : {"", "{", "[1,]", "NaN", "{\"a\":1}x", "\"\xff\"", "1e999"})
    expect_refusal([&] { parse_json(wrong); }, {"json.exception"});
  const auto nested = [](size_t levels) { return std::string(levels, '[') + std::string(levels, ']'); };
  EXPECT_NO_THROW(parse_json(nested(32)));
  expect_refusal([&] { parse_json(nested(1'000'000)); }, {"deeper than 32"});
  expect_refusal([&] { parse_json(R"([{"b": {"a": 1}, "a": 1, "a": 2}])"); }, {"has 'a' twice"});
}

TEST(JsonTextTest, WritesAnyBytesAndKeepsWhatIsUtf8) {
  EXPECT_EQ(json_text({{"a", "o/d\xff"}}), "{\"a\":\"o/d\xEF\xBF\xBD\"}");
  EXPECT_EQ(json_text({1, "\xC3\xB6"}, 2), "[\n  1,\n  \"\xC3\xB6\"\n]");
  EXPECT_EQ(utf8_of("o/d\xff\"\n\xC3\xB6"), "o/d\xEF\xBF\xBD\"\n\xC3\xB6");
}

TEST(JsonTextTest, WholeNumbersAreNeitherRoundedNorWrapped) {
  EXPECT_EQ(whole_number(7, "it"), 7);
  EXPECT_EQ(whole_number(-1, "it", -1), -1);
  EXPECT_EQ(whole_number(INT64_MAX, "it"), INT64_MAX);
  for (const char* wrong :
       {"-1", "1.5", "1e300", "18446744073709551615", "9223372036854775808", "true", "\"7\"", "[7]", "null"})
    expect_refusal([&] { whole_number(parse_json(wrong), "it"); }, {"it is ", "a whole number from 0"});
  expect_refusal([&] { whole_number(8, "it", 0, 7); }, {"it is 8", "to 7"});
}

}  // namespace
}  // namespace spillway
