#include "tools/cli/write_json.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>

#include "tests/support/disk.h"

namespace spillway::tools {
namespace {

using testing::TemporaryFolder;

std::string contents_of(const std::filesystem::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(WriteJsonTest, KeepsTheFormerFileUntilTheNewOneIsWhole) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "a.json";
  write_json({{"a", "\xff"}}, file);
  EXPECT_EQ(contents_of(file), "{\n  \"a\": \"\xEF\xBF\xBD\"\n}\n");
  std::filesystem::create_hard_link(file, folder.path() / "former");
  write_json(7, file);
  EXPECT_EQ(contents_of(file), "7\n");
  EXPECT_NE(contents_of(folder.path() / "former"), "7\n") << "was written in place";
  EXPECT_EQ(folder.names().size(), 2u);
}

TEST(WriteJsonTest, WritesToWhatALinkOrAPipeLeadsTo) {
  const TemporaryFolder folder;
  const auto link = folder.path() / "link", target = folder.path() / "target", pipe = folder.path() / "pipe";
  std::filesystem::create_symlink(target, link);
  write_json(1, link);
  write_json(2, link);
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(contents_of(target), "2\n");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::string received;
  check_writable(pipe);
  std::thread reader([&] { received = contents_of(pipe); });
  write_json(3, pipe);
  reader.join();
  EXPECT_EQ(received, "3\n");
}

TEST(WriteJsonTest, TheCheckLeavesNoTrace) {
  const TemporaryFolder folder;
  check_writable(folder.path() / "a.json");
  EXPECT_TRUE(folder.names().empty());
  std::ofstream(folder.path() / "a.json") << "former";
  check_writable(folder.path() / "a.json");
  EXPECT_EQ(contents_of(folder.path() / "a.json"), "former");
  std::filesystem::create_symlink(folder.path() / "nothing", folder.path() / "link");
  check_writable(folder.path() / "link");
  EXPECT_TRUE(std::filesystem::is_symlink(folder.path() / "link"));
  EXPECT_EQ(folder.names().size(), 2u);
  EXPECT_THROW(check_writable(folder.path()), std::system_error);
  EXPECT_THROW(check_writable(folder.path() / "no" / "folder"), std::system_error);
}

}  // namespace
}  // namespace spillway::tools
