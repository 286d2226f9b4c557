#include "core/host/text_file.h"

#include <gtest/gtest.h>

#include <fstream>

#include "core/error.h"
#include "tests/support/disk.h"

namespace spillway {
namespace {

class TextFileTest : public ::testing::Test {
 protected:
  std::string read(const std::string& bytes, int64_t max_bytes = 1 << 20) const {
    std::ofstream(file(), std::ios::binary) << bytes;
    return read_text_file(file(), max_bytes);
  }
  std::string reason(const std::filesystem::path& of, int64_t max_bytes = 1 << 20) const {
    try {
      (void)read_text_file(of, max_bytes);
    } catch (const BadRequest& error) {
      return error.what();
    }
    return "it was read";
  }
  std::filesystem::path file() const { return folder_.path() / "a.txt"; }

  const testing::TemporaryFolder folder_;
};

}  // namespace

TEST_F(TextFileTest, GivesTheTextThatAnEditorShows) {
  EXPECT_EQ(read(""), "");
  EXPECT_EQ(read("a\nb"), "a\nb");
  EXPECT_EQ(read("\xEF\xBB\xBF"
                 "a\nb\n"),
            "a\nb\n");
  EXPECT_EQ(read("\xEF\xBB\xBF"), "");
  EXPECT_EQ(read("a\r\n\r\nb\r\n"), "a\n\nb\n");
  EXPECT_EQ(read("a\rb\r"), "a\rb");
  EXPECT_EQ(read("a\xEF\xBB\xBF"), "a\xEF\xBB\xBF") << "a mark is one at the beginning alone";
}

TEST_F(TextFileTest, SaysWhyThereIsNoText) {
  EXPECT_EQ(reason(folder_.path() / "none"), "No such file or directory");
  EXPECT_EQ(reason(folder_.path()), "it is a folder");
  (void)read("12345");
  EXPECT_EQ(reason(file(), 5), "it was read");
  EXPECT_EQ(reason(file(), 4), "it is larger than 4 bytes");
  for (const char* mark : {"\xFF\xFE"
                           "a",
                           "\xFE\xFF"
                           "a"}) {
    std::ofstream(file(), std::ios::binary) << mark;
    EXPECT_EQ(reason(file()), "it is UTF-16; save it as UTF-8");
  }
}

}  // namespace spillway
