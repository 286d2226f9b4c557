/// Ranks that are only their sockets' endpoints, for tests of who connects to them.
#pragma once
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "core/error.h"
#include "ddl/sockets/greeting.h"
#include "ddl/sockets/meeting.h"
#include "ddl/sockets/socket_endpoint.h"
#include "tests/support/ddl/socket_world.h"

namespace spillway::ddl::testing {

inline constexpr std::chrono::seconds kDeadline{60};

inline SocketOptions options_of(int host, const std::string& secret = {}) {
  return {.deadline = kDeadline, .host = str("host", host), .secret = secret};
}

/// Waits until a rank has published its addresses.
inline RankAddress await(SharedTexts& texts, int rank, const std::string& secret = {}) {
  while (!texts.find(str("spillway/", rank))) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return parse_address(rank, *texts.find(str("spillway/", rank)), secret);
}

/// Two ranks that are only endpoints.
struct Endpoints {
  explicit Endpoints(bool one_host, const std::string& secret = {}) {
    std::thread other([&] { one = meet(1, 2, texts, options_of(one_host ? 0 : 1, secret)); });
    zero = meet(0, 2, texts, options_of(0, secret));
    other.join();
  }
  SharedTexts texts;
  std::unique_ptr<SocketEndpoint> zero, one;
};

/// Starts a connection from rank 1 to rank 0, with its hello.
inline Socket connect_to_0(SocketEndpoint& one, uint64_t wire) {
  auto [socket, hello] = one.connect(0, wire);
  fcntl(socket.fd(), F_SETFL, fcntl(socket.fd(), F_GETFL) & ~O_NONBLOCK);
  EXPECT_EQ(send(socket.fd(), &hello, sizeof hello, MSG_NOSIGNAL), std::ssize(std::as_bytes(std::span(&hello, 1))));
  return std::move(socket);
}

}  // namespace spillway::ddl::testing
