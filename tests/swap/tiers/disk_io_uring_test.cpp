// Tests that the disk tier copes with kernels that refuse rings, their use, or waiting.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <system_error>
#include <thread>

#include "core/error.h"
#include "swap/tiers/disk_tier.h"
#include "tests/support/disk.h"
#include "tests/support/disk_memory.h"

namespace spillway {
using namespace swap;
namespace {

using testing::expect_parts;
using testing::Memory;
using testing::TemporaryFolder;

/// Makes the kernel refuse this system call to this process, as containers do. Returns false when it cannot.
bool forbid(uint32_t call) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog filter{4, program};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

constexpr int kNoFilters = 10;

/// Returns how a child of in_child() ended, in words.
std::string end_of(int status, std::chrono::seconds limit) {
  if (WIFEXITED(status)) return str("ended with ", WEXITSTATUS(status));
  const int number = WTERMSIG(status);
  if (number == SIGALRM) return str("took longer than ", limit.count(), " s");
  return str("crashed: signal ", number, " (", ::strsignal(number), ")");
}

/// Runs `work` in a child. Returns how it ended: `ended with 0` when all went well.
std::string end_in_child(const std::function<int()>& work, std::chrono::seconds limit) {
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGALRM, SIG_DFL);
    ::alarm(static_cast<unsigned>(limit.count()));
    ::_exit(work());
  }
  int status = 0;
  if (::waitpid(child, &status, 0) != child) return "was not there";
  return end_of(status, limit);
}

/// Expects that `work` returns 0 in a child. Skips the test where it returns kNoFilters.
void in_child(const std::function<int()>& work) {
  const std::string end = end_in_child(work, std::chrono::seconds(60));
  if (end == str("ended with ", kNoFilters)) GTEST_SKIP() << "this system has no seccomp filters";
  EXPECT_EQ(end, "ended with 0");
}

TEST(InChildTest, TellsACrashFromAHangAndFromAWrongResult) {
  using namespace std::chrono_literals;
  EXPECT_EQ(end_in_child([] { return 3; }, 60s), "ended with 3");
  EXPECT_EQ(end_in_child([] { return ::raise(SIGKILL); }, 60s), str("crashed: signal 9 (", ::strsignal(SIGKILL), ")"));
  EXPECT_EQ(end_in_child([] { return ::pause(); }, 1s), "took longer than 1 s");
}

/// Expects that threads do the work of a tier in a process that may not make this system call.
void expect_threads_without(uint32_t call) {
  ::testing::internal::CaptureStderr();
  in_child([call] {
    if (!forbid(call)) return kNoFilters;
    TemporaryFolder folder;
    HostSlab host(4 << 20);
    DiskTier tier(folder.path(), host);
    Memory memory(1 << 20), back(1 << 20);
    memory.fill(1);
    auto page = tier.make_page(memory.bytes);
    tier.write(page, {memory.data}).wait();
    tier.read(page, {back.data}).wait();
    std::fflush(stderr);
    std::filesystem::remove_all(folder.path());
    return back.same(memory) && tier.description().starts_with("2 threads") ? 0 : 1;
  });
  const std::string said = ::testing::internal::GetCapturedStderr();
  if (!::testing::Test::IsSkipped()) expect_parts(said, {"[disk]", "using 2 threads"});
}

struct DiskIoUringTest : ::testing::Test {
  void SetUp() override {
    if (!make_uring_io(1, why_not)) GTEST_SKIP() << why_not;
  }
  std::string why_not;
};

TEST(DiskIoTest, WhereIoUringIsForbiddenThreadsDoTheWorkAndItIsSaid) {
  expect_threads_without(__NR_io_uring_setup);
}

TEST_F(DiskIoUringTest, WhereRingsMayBeMadeButNotUsedThreadsDoTheWork) {
  expect_threads_without(__NR_io_uring_enter);
}

TEST_F(DiskIoUringTest, WhereTheKernelDoesNotSayWhatRingsCanDoThreadsDoTheWork) {
  expect_threads_without(__NR_io_uring_register);
}

/// Checks a thread that may no longer sleep until an operation ends. It polls instead, and the operation's memory must
/// last until it ends.
TEST_F(DiskIoUringTest, WhatWasStartedIsWaitedForThoughTheKernelRefusesToWait) {
  in_child([&] {
    int ends[2];
    if (::pipe(ends)) return 2;
    std::thread writer([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      (void)!::write(ends[1], "x", 1);
    });
    auto io = make_uring_io(4, why_not);
    char byte = 0;
    DiskOperation operation{.descriptor = ends[0], .write = false, .data = &byte, .bytes = 1, .offset = 0};
    io->start(operation);
    const bool forbidden = forbid(__NR_io_uring_enter);
    const bool same = &io->wait() == &operation;
    writer.join();
    if (!forbidden) return kNoFilters;
    return same && !operation.failed() && byte == 'x' ? 0 : 1;
  });
}

TEST_F(DiskIoUringTest, OperationsThatTheKernelRefusesAreErrorsHoweverMany) {
  in_child([&] {
    auto io = make_uring_io(4, why_not);
    if (!forbid(__NR_io_uring_enter)) return kNoFilters;
    char byte = 0;
    int refused = 0;
    for (int i = 0; i < 20; ++i) {
      DiskOperation operation{.descriptor = 0, .write = false, .data = &byte, .bytes = 1, .offset = 0};
      try {
        io->start(operation);
      } catch (const std::system_error&) {
        ++refused;
      }
    }
    return refused == 20 ? 0 : 1;
  });
}

}  // namespace
}  // namespace spillway
