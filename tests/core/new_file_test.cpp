#include "core/new_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <system_error>

#include "tests/support/disk.h"

namespace spillway {
using namespace swap;
namespace {

using testing::TemporaryFolder;

std::string contents_of(const std::filesystem::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

void replace(const std::filesystem::path& file, const std::string& text) {
  NewFile fresh(file);
  fresh.write(text.data(), text.size());
  fresh.commit();
}

TEST(NewFileTest, TakesTheFormerFilesPlaceWhenItIsWhole) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "a";
  replace(file, "former");
  {
    NewFile fresh(file);
    fresh.write("new", 3);
    EXPECT_EQ(contents_of(file), "former");
  }
  EXPECT_EQ(contents_of(file), "former");
  EXPECT_EQ(folder.names().size(), 1u);
  replace(file, "new");
  EXPECT_EQ(contents_of(file), "new");
  EXPECT_EQ(folder.names().size(), 1u);
}

TEST(NewFileTest, OnlyItsOwnerMayReadIt) {
  const TemporaryFolder folder;
  replace(folder.path() / "a", "secret");
  struct stat status {};
  ASSERT_EQ(::stat((folder.path() / "a").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST(NewFileTest, EveryoneWhomTheUmaskAllowsMayReadAPublicOne) {
  const TemporaryFolder folder;
  const mode_t before = ::umask(0027);
  NewFile fresh(folder.path() / "a", Readers::everyone);
  ::umask(before);
  fresh.write("page");
  fresh.commit();
  struct stat status {};
  ASSERT_EQ(::stat((folder.path() / "a").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640u);
  EXPECT_EQ(contents_of(folder.path() / "a"), "page");
}

TEST(NewFileTest, RefusesAFoldersPlaceBeforeAnythingIsWritten) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.path() / "a");
  try {
    NewFile fresh(folder.path() / "a");
    ADD_FAILURE() << "would replace a folder";
  } catch (const std::system_error& error) {
    EXPECT_EQ(error.code(), std::errc::is_a_directory);
  }
  EXPECT_EQ(folder.names().size(), 1u);
}

TEST(NewFileTest, NeverWritesThroughALinkThatLiesInItsPlace) {
  const TemporaryFolder folder;
  const auto victim = folder.path() / "victim", file = folder.path() / "a";
  std::ofstream(victim) << "mine";
  std::filesystem::create_symlink(victim, file);
  std::filesystem::create_symlink(victim, folder.path() / "a.part");
  replace(file, "new");
  EXPECT_EQ(contents_of(victim), "mine");
  EXPECT_EQ(contents_of(file), "new");
  EXPECT_FALSE(std::filesystem::is_symlink(file));
  std::filesystem::remove(file);
  std::filesystem::create_hard_link(victim, folder.path() / "a.part");
  replace(file, "new");
  EXPECT_EQ(contents_of(victim), "mine");
}

TEST(NewFileTest, IsNotCompletedWithTheBytesOfAnotherWriter) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "a";
  replace(file, "former");
  auto first = std::make_unique<NewFile>(file);
  first->write("first");
  NewFile second(file);
  second.write("sec");
  EXPECT_THROW(first->commit(), std::system_error);
  first.reset();
  EXPECT_EQ(contents_of(file), "former");
  second.write("ond");
  second.commit();
  EXPECT_EQ(contents_of(file), "second");
  EXPECT_EQ(folder.names().size(), 1u);
}

TEST(NewFileTest, NamesWhatCannotBeWritten) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.path() / "a.part" / "inside");
  try {
    NewFile fresh(folder.path() / "a");
    ADD_FAILURE() << "wrote to a folder";
  } catch (const std::system_error& error) {
    EXPECT_NE(std::string(error.what()).find("a.part"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace spillway
