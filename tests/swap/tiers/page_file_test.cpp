#include "swap/tiers/page_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "core/error.h"
#include "tests/support/disk.h"

namespace spillway {
using namespace swap;
namespace {

using testing::TemporaryFolder;

TEST(PageFileTest, IsThereWhileItIsUsedAndGoneAfterwards) {
  TemporaryFolder folder;
  {
    PageFile file(folder.path());
    ASSERT_EQ(folder.names().size(), 1u);
    EXPECT_TRUE(folder.names()[0].starts_with("spillway-" + std::to_string(::getpid()) + "-"));
    PageFile second(folder.path());  // another file in the same process
    EXPECT_NE(second.path(), file.path());
    EXPECT_EQ(folder.names().size(), 2u);
  }
  EXPECT_TRUE(folder.names().empty());
}

/// A process that holds a page file until it is killed.
class Holder {
 public:
  explicit Holder(const TemporaryFolder& folder) {
    int ready[2];
    if (::pipe(ready) != 0) throw std::runtime_error("pipe");
    pid_ = ::fork();
    if (pid_ == 0) {
      PageFile file(folder.path());
      (void)!::write(ready[1], "x", 1);
      for (;;) ::pause();
    }
    char byte;
    ::close(ready[1]);
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    ::close(ready[0]);
  }
  ~Holder() { kill(); }
  void kill() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_;
};

TEST(PageFileTest, AKilledRunsFileGoesAtTheNextStartAndALiveRunsFileStays) {
  TemporaryFolder folder;
  Holder crashed(folder), alive(folder);
  ASSERT_EQ(folder.names().size(), 2u);
  crashed.kill();
  ASSERT_EQ(folder.names().size(), 2u);  // no process has cleaned up yet
  {
    PageFile next(folder.path());
    EXPECT_EQ(folder.names().size(), 2u);  // those of the live process and of this one
    EXPECT_TRUE(std::filesystem::exists(next.path()));
  }
  EXPECT_EQ(folder.names().size(), 1u);
  alive.kill();
  EXPECT_EQ(remove_stale_page_files(folder.path()), 1);
  EXPECT_TRUE(folder.names().empty());
}

TEST(PageFileTest, LeavesEverythingElseInTheDirectoryAlone) {
  TemporaryFolder folder;
  char host[256] = "";
  ASSERT_EQ(::gethostname(host, sizeof(host) - 1), 0);
  const std::string end = "@" + std::string(host) + ".pages";
  const auto others = {"spillway-1-2" + end + ".bak", "spillway-notes" + end,
                       "x-spillway-1-2" + end,        std::string("spillway-1-2.txt"),
                       "spillway-1-2@another" + end,  std::string("spillway-7-8@another.pages")};
  for (const std::string& name : others) std::ofstream(folder.path() / name) << "mine, or another host's";
  std::filesystem::create_directory(folder.path() / ("spillway-3-4" + end));
  std::filesystem::create_symlink(folder.path() / "spillway-1-2.txt", folder.path() / ("spillway-5-6" + end));
  std::ofstream(folder.path() / ("spillway-7-8" + end)) << "a crashed run's";
  { PageFile file(folder.path()); }
  EXPECT_EQ(folder.names().size(), 8u);
  EXPECT_FALSE(std::filesystem::exists(folder.path() / ("spillway-7-8" + end)));
}

TEST(PageFileTest, KnowsNamesOfRunsFromOthers) {
  for (const char* ours :
       {"spillway-1-2@h.pages", "spillway-1-2-3@h.pages", "spillway-007-18446744073709551616@h.pages"})
    EXPECT_TRUE(is_page_file_name(ours, "h")) << ours;
  for (const char* other :
       {"", "spillway-@h.pages", "spillway-1@h.pages", "spillway-1-@h.pages", "spillway--1@h.pages",
        "spillway-1-2-3-4@h.pages", "spillway-1-2@h.page", "spillway-1-2@h.pages ", "spillway-a-2@h.pages",
        "spillway-1-2-@h.pages", "spillway@h.pages", "spillway-1-2.pages", "spillway-1-2@g.pages"})
    EXPECT_FALSE(is_page_file_name(other, "h")) << other;
}

TEST(PageFileTest, ManyProcessesThatStartAtOnceKeepEachOthersFiles) {
  TemporaryFolder folder;
  std::vector<pid_t> children;
  for (int c = 0; c < 4; ++c) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    for (int i = 0; i < 50; ++i) {
      PageFile file(folder.path());
      if (!std::filesystem::exists(file.path())) ::_exit(1);
    }
    ::_exit(0);
  }
  for (pid_t child : children) {
    int status = -1;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_TRUE(folder.names().empty());
}

TEST(PageFileTest, ReusesTheRoomOfExtentsThatWereFreed) {
  TemporaryFolder folder;
  PageFile file(folder.path());
  const int64_t a = file.allocate(1 << 20), b = file.allocate(1 << 20);
  EXPECT_NE(a, b);
  file.free(a, 1 << 20);
  EXPECT_EQ(file.allocate((1 << 20) - 5), a);
  file.free(a, (1 << 20) - 5);
  EXPECT_EQ(file.used_bytes(), 1 << 20);
  EXPECT_EQ(file.peak_bytes(), 2 << 20);
  EXPECT_EQ(file.allocate(100 << 20) % PageFile::kAlignment, 0);  // more than the file grows by at once
}

TEST(PageFileTest, AFullDiskIsAnErrorThatNamesTheFileAndLeavesTheRestAsItWas) {
  TemporaryFolder folder;
  PageFile file(folder.path());
  const int64_t first = file.allocate(1 << 20);
  file.free(first, 1 << 20);
  auto ignored = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit tight = before;
  tight.rlim_cur = 66 << 20;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
  try {
    (void)file.allocate(70 << 20);
    ADD_FAILURE() << "found room that is not there";
  } catch (const DiskError& error) {
    EXPECT_NE(std::string(error.what()).find(file.path().string()), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("70.0 MiB"), std::string::npos) << error.what();
  }
  EXPECT_EQ(file.allocate(64 << 20), first);    // space that the file already has
  EXPECT_EQ(file.allocate(1 << 20), 64 << 20);  // less than its usual growth
  EXPECT_THROW((void)file.allocate(2 << 20), DiskError);
  EXPECT_EQ(file.used_bytes(), 65 << 20);
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, ignored);
  EXPECT_NO_THROW((void)file.allocate(2 << 20));
}

TEST(PageFileTest, RefusesDirectoriesThatAreNotThereOrCannotBeWritten) {
  TemporaryFolder folder;
  std::ofstream(folder.path() / "file") << "x";
  for (const auto& path : {folder.path() / "nowhere", folder.path() / "file"}) {
    try {
      PageFile file(path);
      ADD_FAILURE() << "made a page file in " << path;
    } catch (const BadRequest& error) {
      EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos) << error.what();
    }
  }
  std::filesystem::permissions(folder.path(), std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec |
                                                  std::filesystem::perms::others_read |
                                                  std::filesystem::perms::others_exec);
  const bool root = ::geteuid() == 0;
  if (root && ::seteuid(65534) != 0) GTEST_SKIP() << "root that cannot be anyone else";
  EXPECT_THROW(PageFile{folder.path()}, BadRequest);
  if (root) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  std::filesystem::permissions(folder.path(), std::filesystem::perms::owner_all);
}

}  // namespace
}  // namespace spillway
