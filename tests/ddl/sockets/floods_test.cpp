// More connections than ranks make, and than there are descriptors.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <iterator>
#include <thread>
#include <vector>

#include "core/clock.h"
#include "ddl/comm/collectives.h"
#include "ddl/comm/communicator.h"
#include "ddl/sockets/socket_transport.h"
#include "ddl/sockets/system_sockets.h"
#include "tests/ddl/sockets/endpoints.h"

namespace spillway::ddl::testing {
namespace {

int open_descriptors() {
  using std::filesystem::directory_iterator;
  return static_cast<int>(std::distance(directory_iterator("/proc/self/fd"), directory_iterator()));
}

}  // namespace

TEST(StrangersTest, ThousandsOfSilentConnectionsKeepNobodyFromTalking) {
  std::array<int, 2> told{}, done{};
  ASSERT_EQ(pipe(told.data()) | pipe(done.data()), 0);
  const pid_t flood = fork();
  if (flood == 0) {
    rlimit limit = {};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    RankAddress address;
    std::array<char, 64> unix_name{}, port{};
    if (read(told[0], unix_name.data(), unix_name.size()) < 0 || read(told[0], port.data(), port.size()) < 0) _exit(9);
    std::vector<Socket> silent;
    try {
      while (silent.size() < 2000) {
        silent.push_back(silent.size() % 2 == 0 ? connect_by_unix(unix_name.data())
                                                : connect_by_tcp("127.0.0.1", port.data()));
        if (!silent.back()) silent.pop_back();  // the queue is full
      }
    } catch (const std::runtime_error&) {  // too few descriptors for more
    }
    ::close(done[1]);
    while (true) pause();
  }
  ::close(done[1]);
  SharedTexts texts;
  std::vector<std::thread> ranks;
  std::atomic<bool> is_flooded = false;
  const int before = open_descriptors();
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      Communicator comm(socket_transport(rank, 2, texts, options_of(rank)), {.deadline = kDeadline});
      for (int8_t ends = 0; ends == 0;) {
        ends = rank == 0 && is_flooded ? 1 : 0;
        broadcast(comm, std::as_writable_bytes(std::span(&ends, 1)), 0);
        barrier(*comm.duplicate());
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      EXPECT_LT(open_descriptors(), before + 300);
      const int file = ::open("/etc/hostname", O_RDONLY);
      EXPECT_GE(file, 0);
      ::close(file);
    });
  const RankAddress address = await(texts, 0);
  std::array<char, 64> name{}, port{};
  std::copy(address.unix_name.begin(), address.unix_name.end(), name.begin());
  std::copy(address.port.begin(), address.port.end(), port.begin());
  EXPECT_EQ(write(told[1], name.data(), name.size()) + write(told[1], port.data(), port.size()), 128);
  char byte = 0;
  EXPECT_EQ(read(done[0], &byte, 1), 0);  // all have connected
  is_flooded = true;
  for (std::thread& rank : ranks) rank.join();
  kill(flood, SIGKILL);
  waitpid(flood, nullptr, 0);
  for (const int fd : {told[0], told[1], done[0]}) ::close(fd);
}

TEST(StrangersTest, ARankThatIsHeldUpAfterItHasConnectedDoesNotGoForAFlood) {
  for (const bool one_host : {true, false}) {
    Endpoints ranks(one_host);
    const RankAddress address = await(ranks.texts, 0);
    auto [late, hello] = ranks.one->connect(0, 7);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    std::vector<Socket> silent;
    for (int i = 0; i < 200; ++i) {
      silent.push_back(one_host ? connect_by_unix(address.unix_name) : connect_by_tcp("127.0.0.1", address.port));
      ranks.zero->progress();
    }
    EXPECT_EQ(send(late.fd(), &hello, sizeof hello, MSG_NOSIGNAL), std::ssize(std::as_bytes(std::span(&hello, 1))));
    const auto end = Clock::now() + kDeadline;
    std::vector<std::pair<int, Socket>> taken;
    while (taken.empty() && Clock::now() < end) {
      ranks.zero->progress();
      taken = ranks.zero->take(7);
    }
    EXPECT_EQ(taken.size(), 1U);
  }
}

TEST(StrangersTest, WithoutADescriptorForAConnectionTheErrorTellsTheLimit) {
  Endpoints ranks(true);
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  std::vector<Socket> connections;
  for (uint64_t wire = 1; wire < 5; ++wire) connections.push_back(connect_to_0(*ranks.one, wire));
  const rlimit few{static_cast<rlim_t>(open_descriptors()), limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<int> taken;
  for (int fd = dup(0); fd >= 0; fd = dup(0)) taken.push_back(fd);
  std::string error;
  try {
    ranks.zero->progress();
  } catch (const std::runtime_error& found) {
    error = found.what();
  }
  EXPECT_THROW(ranks.zero->progress(), std::runtime_error);
  EXPECT_THROW(ranks.one->connect(0, 9), std::runtime_error);
  for (const int fd : taken) ::close(fd);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_NE(error.find(str("may have ", few.rlim_cur, " descriptors (ulimit -n)")), std::string::npos) << error;
  EXPECT_EQ(ranks.zero->take(1).size(), 1U) << "a spare descriptor took it";
}

}  // namespace spillway::ddl::testing
