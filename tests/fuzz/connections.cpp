#include <sys/socket.h>

#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "core/clock.h"
#include "ddl/sockets/meeting.h"
#include "ddl/sockets/socket_endpoint.h"
#include "ddl/sockets/socket_wire.h"
#include "ddl/sockets/system_sockets.h"
#include "tests/fuzz/support.h"
#include "tests/fuzz/targets.h"
#include "tests/support/ddl/socket_world.h"

namespace spillway::fuzz {
namespace {

using namespace spillway::ddl;

/// Two ranks that live as long as the process.
struct Ranks {
  ddl::testing::SharedTexts texts;
  std::shared_ptr<SocketEndpoint> zero, one;
  RankAddress address;  ///< the address of rank 0

  Ranks() {
    const auto make = [this](int rank) { return meet(rank, 2, texts, {.host = str("host", rank)}); };
    std::thread other([&] { one = make(1); });
    zero = make(0);
    other.join();
    address = parse_address(0, *texts.find("spillway/0"), "");
  }
  static Ranks& all() {
    static auto* const ranks = new Ranks;  // never destroyed, because sockets outlive what a fuzzer destroys
    return *ranks;
  }
};

void send_all(const Socket& socket, const void* bytes, size_t size) {
  send(socket.fd(), bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);  // what does not fit is cut off
}

/// A stranger's bytes, behind a hello with the right token if he is to know it.
void greet(std::string_view input, bool knows_token) {
  Ranks& ranks = Ranks::all();
  const Socket stranger = connect_by_unix(ranks.address.unix_name);
  std::string bytes(input);
  if (knows_token && bytes.size() >= sizeof(Hello)) {
    Hello hello;
    std::memcpy(static_cast<void*>(&hello), bytes.data(), sizeof hello);
    hello.magic = Hello::kMagic;
    hello.version = kProtocol;
    hello.token = ranks.address.token;
    hello.wire %= 3;
    std::memcpy(bytes.data(), &hello, sizeof hello);
  }
  send_all(stranger, bytes.data(), bytes.size());
  ranks.zero->progress();
  require(!ranks.zero->gone(1), "nobody ends another rank");
  for (uint64_t wire = 0; wire < 3; ++wire)
    require(ranks.zero->take(wire).size() <= (knows_token && wire > 0 ? 1 : 0), "one connection of a rank for a wire");
}

/// A rank's bytes after its hello, while messages of it are awaited.
void speak(std::string_view input) {
  static uint64_t last_wire = 1000;
  Ranks& ranks = Ranks::all();
  SocketWire wire(ranks.zero, ++last_wire, {0, 1});
  auto [socket, hello] = ranks.one->connect(0, last_wire);
  send_all(socket, &hello, sizeof hello);
  send_all(socket, input.data(), input.size());
  socket.close();
  std::array<std::vector<std::byte>, 3> buffers{std::vector<std::byte>(0), std::vector<std::byte>(8),
                                                std::vector<std::byte>(3000)};
  std::array<Request, 3> requests;
  for (size_t i = 0; i < requests.size(); ++i) requests[i] = wire.receive(1, static_cast<Tag>(i + 1), buffers[i]);
  const auto end = Clock::now() + std::chrono::seconds(60);
  for (Request& request : requests) {
    try {
      while (!wire.test(request) && !wire.will_never_finish(request)) {
        require(Clock::now() < end, "an end is noticed");
        wire.idle(end);
      }
    } catch (const std::runtime_error&) {  // a message of another size, or a header that is none
    }
  }
}

}  // namespace

void connections(std::string_view input) {
  const unsigned kind = take_byte(input) % 3;
  if (kind == 2)
    speak(input);
  else
    greet(input, kind == 1);
}

}  // namespace spillway::fuzz
