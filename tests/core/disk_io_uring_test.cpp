// What a kernel may refuse of io_uring: rings, their use, and waiting.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string>
#include <system_error>
#include <thread>

#include "core/disk_tier.h"
#include "tests/support/disk.h"
#include "tests/support/disk_memory.h"

namespace spillway {
namespace {

using testing::expect_parts;
using testing::Memory;
using testing::TemporaryFolder;

/// Makes the kernel refuse this system call to this process, as containers do.
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

/// Threads must do the work of a tier in a process that may not make this system call.
void expect_threads_without(uint32_t call) {
  ::testing::internal::CaptureStderr();
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    if (!forbid(call)) ::_exit(10);
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
    ::_exit(back.same(memory) && tier.description().starts_with("2 threads") ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  const std::string said = ::testing::internal::GetCapturedStderr();
  if (WIFEXITED(status) && WEXITSTATUS(status) == 10) GTEST_SKIP() << "this system has no seccomp filters";
  EXPECT_EQ(status, 0);
  expect_parts(said, {"[disk]", "using 2 threads"});
}

TEST(DiskIoUringTest, WhereIoUringIsForbiddenThreadsDoTheWorkAndItIsSaid) {
  expect_threads_without(__NR_io_uring_setup);
}

TEST(DiskIoUringTest, WhereRingsMayBeMadeButNotUsedThreadsDoTheWork) {
  std::string why_not;
  if (!make_uring_io(1, why_not)) GTEST_SKIP() << why_not;
  expect_threads_without(__NR_io_uring_enter);
}

TEST(DiskIoUringTest, WhereTheKernelDoesNotSayWhatRingsCanDoThreadsDoTheWork) {
  std::string why_not;
  if (!make_uring_io(1, why_not)) GTEST_SKIP() << why_not;
  expect_threads_without(__NR_io_uring_register);
}

/// A thread that may no longer sleep until an operation ends looks again and again: memory must last as long as that.
TEST(DiskIoUringTest, WhatWasStartedIsWaitedForThoughTheKernelRefusesToWait) {
  std::string why_not;
  if (!make_uring_io(1, why_not)) GTEST_SKIP() << why_not;
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    int ends[2];
    if (::pipe(ends)) ::_exit(2);
    std::thread writer([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      (void)!::write(ends[1], "x", 1);
    });
    auto io = make_uring_io(4, why_not);
    char byte = 0;
    DiskOperation operation{.descriptor = ends[0], .write = false, .data = &byte, .bytes = 1, .offset = 0};
    io->start(operation);
    if (!forbid(__NR_io_uring_enter)) ::_exit(10);
    const bool same = &io->wait() == &operation;
    writer.join();
    ::_exit(same && !operation.failed() && byte == 'x' ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 10) GTEST_SKIP() << "this system has no seccomp filters";
  EXPECT_EQ(status, 0);
}

TEST(DiskIoUringTest, OperationsThatTheKernelRefusesAreErrorsHoweverMany) {
  std::string why_not;
  if (!make_uring_io(1, why_not)) GTEST_SKIP() << why_not;
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    auto io = make_uring_io(4, why_not);
    if (!forbid(__NR_io_uring_enter)) ::_exit(10);
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
    ::_exit(refused == 20 ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 10) GTEST_SKIP() << "this system has no seccomp filters";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace spillway
