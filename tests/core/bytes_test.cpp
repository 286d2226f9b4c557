#include "core/bytes.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace spillway {

TEST(BytesTest, ReadsDecimalAndBinaryUnits) {
  EXPECT_EQ(parse_bytes("4096"), 4096);
  EXPECT_EQ(parse_bytes("600MiB"), 600LL << 20);
  EXPECT_EQ(parse_bytes("16GB"), 16'000'000'000);
  EXPECT_EQ(parse_bytes("1.5 GiB"), 3LL << 29);
  EXPECT_EQ(parse_bytes("0"), 0);
}

TEST(BytesTest, RefusesWhatIsNotASizeAndNamesIt) {
  for (const char* text : {"", "GiB", "12 bananas", "-1GiB", "1e3", "nan", "12GiBs", "99999999TiB"}) {
    try {
      parse_bytes(text);
      FAIL() << "accepted '" << text << "'";
    } catch (const BadRequest& error) {
      EXPECT_NE(std::string(error.what()).find(str("'", text, "'")), std::string::npos) << error.what();
    }
  }
}

TEST(BytesTest, PrintsThreeDigitsWithABinaryUnit) {
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(12LL << 20), "12.0 MiB");
  EXPECT_EQ(format_bytes(kUnlimitedBytes), "unlimited");
}

}  // namespace spillway
