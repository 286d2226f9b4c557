// Connections and bytes of strangers, and of ranks that say nonsense.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>

#include "core/clock.h"
#include "core/error.h"
#include "core/hash.h"
#include "ddl/comm/agreement.h"
#include "ddl/comm/collectives.h"
#include "ddl/comm/communicator.h"
#include "ddl/comm/notice_board.h"
#include "ddl/sockets/greeting.h"
#include "ddl/sockets/meeting.h"
#include "ddl/sockets/socket_endpoint.h"
#include "ddl/sockets/socket_transport.h"
#include "ddl/sockets/socket_wire.h"
#include "ddl/sockets/system_sockets.h"
#include "tests/ddl/sockets/endpoints.h"
#include "tests/support/ddl/socket_world.h"

namespace spillway::ddl::testing {
namespace {

constexpr Tag kTag = Tag::blob;

/// Returns what a listener answers to some bytes; nothing where it only closes the connection.
std::optional<Answer> answer_to(const RankAddress& address, bool tcp, const void* bytes, size_t size) {
  const Socket socket = tcp ? connect_by_tcp(address.address, address.port) : connect_by_unix(address.unix_name);
  fcntl(socket.fd(), F_SETFL, fcntl(socket.fd(), F_GETFL) & ~O_NONBLOCK);
  if (send(socket.fd(), bytes, size, MSG_NOSIGNAL) < 0) return std::nullopt;
  Answer answer{};
  return recv(socket.fd(), &answer, sizeof answer, 0) == sizeof answer ? std::optional(answer) : std::nullopt;
}

std::optional<Answer> answer_to(const RankAddress& address, bool tcp, const Hello& hello) {
  return answer_to(address, tcp, &hello, sizeof hello);
}

/// Plays rank 0 with a communicator, and rank 1 with its bare wires: the world's, and that of notices.
std::string error_of_rank_0(const std::function<void(Communicator&)>& honest,
                            const std::function<void(Transport& world, Transport& notices)>& hostile) {
  SharedTexts texts;
  std::string error;
  std::thread rank_0([&] {
    try {
      Communicator comm(socket_transport(0, 2, texts, options_of(0)), {.deadline = kDeadline});
      honest(comm);
    } catch (const CommError& found) {
      error = found.what();
    }
  });
  const auto world = socket_transport(1, 2, texts, options_of(1));
  const auto notices = world->duplicate();
  while (!notices->ready()) notices->idle(Clock::now() + std::chrono::milliseconds(1));
  hostile(*world, *notices);
  const auto copy = world->duplicate();  // is ready once rank 0 says that it is; keeps the wires alive until then
  rank_0.join();
  return error;
}

template <class T>
void send_now(Transport& wire, Tag tag, const T& message) {
  Request request = wire.send(0, tag, std::as_bytes(std::span(&message, 1)));
  while (!wire.test(request)) wire.idle(Clock::now() + std::chrono::milliseconds(1));
}

Notice notice_of(int32_t kind, int32_t sender, int32_t origin, char fill) {
  Notice notice{static_cast<Notice::Kind>(kind), sender, origin, 3};
  notice.reason.fill(fill);
  return notice;
}

/// Waits for a receive of rank 0; returns its error.
std::string error_of(Transport& wire, Request request) {
  const auto end = Clock::now() + std::chrono::seconds(30);
  try {
    while (!wire.test(request)) {
      if (wire.will_never_finish(request)) return "the other rank has ended";
      if (Clock::now() > end) return "nothing came";
      wire.idle(end);
    }
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST(HmacTest, HashesAndProofsAreThoseOfTheStandards) {
  const auto hex = [](const Digest& digest) {
    std::string text;
    for (const uint8_t byte : digest) {
      std::array<char, 3> digits{};
      snprintf(digits.data(), digits.size(), "%02x", byte);
      text += digits.data();
    }
    return text;
  };
  EXPECT_EQ(hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex(sha256(std::string(1'000'000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  // RFC 4231, cases 1, 2 and 6.
  EXPECT_EQ(hex(hmac_sha256(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hex(hmac_sha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex(hmac_sha256(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(StrangersTest, BytesThatAreNoHelloAreTurnedAway) {
  SharedTexts texts;
  std::vector<std::thread> ranks;
  const auto play = [&](int rank) {
    ranks.emplace_back([&texts, rank] {
      Communicator comm(socket_transport(rank, 2, texts, options_of(rank)), {.deadline = kDeadline});
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      for (int i = 0; i < 20; ++i) barrier(comm);
    });
  };
  play(0);
  const RankAddress address = await(texts, 0);
  std::vector<Socket> strangers;
  for (const std::string& text : {std::string(), std::string("GET / HTTP/1.0\r\n\r\n"), std::string(1000, 'x')})
    for (const bool tcp : {false, true}) {
      strangers.push_back(tcp ? connect_by_tcp(address.address, address.port) : connect_by_unix(address.unix_name));
      send(strangers.back().fd(), text.data(), text.size(), MSG_NOSIGNAL);
    }
  play(1);
  for (std::thread& rank : ranks) rank.join();
}

TEST(StrangersTest, AHelloWithoutTheTokenOrForAPlaceThatIsTakenIsRefused) {
  Endpoints ranks(false);
  const RankAddress address = await(ranks.texts, 0);
  std::jthread serves([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) ranks.zero->progress();
  });
  for (const bool tcp : {false, true}) {
    const Hello good{.rank = 1, .token = address.token, .wire = SocketEndpoint::kLifeWire};
    EXPECT_EQ(answer_to(address, tcp, good), Answer::taken);
    for (const auto& change : std::vector<std::function<void(Hello&)>>{
             [](Hello& hello) { ++hello.magic; }, [](Hello& hello) { ++hello.version; },
             [](Hello& hello) { ++hello.token; }, [](Hello& hello) { hello.rank = 0; },
             [](Hello& hello) { hello.rank = 2; }, [](Hello& hello) { hello.rank = -1; }}) {
      Hello bad = good;
      change(bad);
      EXPECT_EQ(answer_to(address, tcp, bad), Answer::stranger);
    }
  }
  EXPECT_FALSE(ranks.zero->gone(1));
}

TEST(StrangersTest, AnotherUsersProcessIsTurnedAway) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  std::array<int, 2> name{};
  ASSERT_EQ(pipe(name.data()), 0);
  const pid_t stranger = fork();
  if (stranger == 0) {
    std::array<char, 64> unix_name{};
    Hello hello{.rank = 1, .wire = SocketEndpoint::kLifeWire};
    const bool knows = read(name[0], unix_name.data(), unix_name.size()) > 0 &&
                       read(name[0], &hello.token, sizeof hello.token) == sizeof hello.token;
    if (!knows || setresuid(65534, 65534, 65534) != 0) _exit(9);
    sockaddr_un to = {};
    to.sun_family = AF_UNIX;
    std::copy(unix_name.begin(), unix_name.end(), to.sun_path + 1);
    const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + strlen(unix_name.data()));
    if (::connect(fd, reinterpret_cast<sockaddr*>(&to), length) != 0) _exit(8);
    Answer answer{};
    [[maybe_unused]] const ssize_t sent = send(fd, &hello, sizeof hello, MSG_NOSIGNAL);
    _exit(recv(fd, &answer, sizeof answer, 0) == 1 && answer == Answer::stranger ? 0 : 7);
  }
  SharedTexts texts;
  std::thread rank_0([&] { meet(0, 2, texts, options_of(0)); });
  const RankAddress address = await(texts, 0);
  std::array<char, 64> text{};
  std::copy(address.unix_name.begin(), address.unix_name.end(), text.begin());
  ASSERT_EQ(write(name[1], text.data(), text.size()), std::ssize(text));
  ASSERT_EQ(write(name[1], &address.token, sizeof address.token),
            std::ssize(std::as_bytes(std::span(&address.token, 1))));
  int status = 0;
  waitpid(stranger, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  meet(1, 2, texts, options_of(0));  // its place is free
  rank_0.join();
  for (const int fd : name) ::close(fd);
}

TEST(StrangersTest, ASecondConnectionOfARankForAWireIsRefused) {
  Endpoints ranks(true);
  SocketWire wire(std::move(ranks.zero), 77, {0, 1});
  std::array<std::byte, 8> message{};
  message.fill(std::byte{5});
  const MessageHeader header{static_cast<int64_t>(kTag), sizeof message};
  const Socket first = connect_to_0(*ranks.one, 77);
  ASSERT_EQ(send(first.fd(), &header, sizeof header, 0), std::ssize(std::as_bytes(std::span(&header, 1))));
  std::array<std::byte, 8> got{};
  Request request = wire.receive(1, kTag, got);
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(wire.test(request));
  const Socket second = connect_to_0(*ranks.one, 77);
  const std::array<std::byte, 8> foreign{};
  ASSERT_EQ(send(second.fd(), foreign.data(), foreign.size(), MSG_NOSIGNAL), 8);
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(wire.test(request));
  ASSERT_EQ(send(first.fd(), message.data(), message.size(), 0), 8);
  EXPECT_EQ(error_of(wire, request), "");
  EXPECT_EQ(got, message);
}

TEST(StrangersTest, ASizeThatIsOnlyToldTakesNoMemory) {
  for (const uint64_t size : {uint64_t{1} << 45, uint64_t{1} << 60, ~uint64_t{0}})
    for (const Tag tag : {kTag, Tag::gather}) {
      Endpoints ranks(true);
      SocketWire wire(std::move(ranks.zero), 77, {0, 1});
      Socket connection = connect_to_0(*ranks.one, 77);
      const MessageHeader header{static_cast<int64_t>(tag), size};
      const std::vector<std::byte> some(100'000);
      EXPECT_EQ(send(connection.fd(), &header, sizeof header, 0), std::ssize(std::as_bytes(std::span(&header, 1))));
      std::array<std::byte, 8> got{};
      const Request request = wire.receive(1, kTag, got);
      std::thread sender([&] {
        send(connection.fd(), some.data(), some.size(), MSG_NOSIGNAL);
        connection.close();
      });
      const std::string error = error_of(wire, request);
      sender.join();
      EXPECT_NE(error.find(size > (uint64_t{1} << 47) ? "announces a message" : "has ended"), std::string::npos)
          << error;
    }
}

TEST(StrangersTest, NoticesOfNobodyAreNoNotices) {
  const std::string error =
      error_of_rank_0([](Communicator& comm) { barrier(comm); },
                      [](Transport&, Transport& notices) {
                        for (const auto& [kind, sender, origin] : std::vector<std::array<int32_t, 3>>{
                                 {0, 1 << 30, 1}, {1, -7, 1}, {2, 2, 1}, {99, 1, 1}, {-1, 1, 1}, {0, 1, -5}})
                          send_now(notices, Tag::notice, notice_of(kind, sender, origin, 'x'));
                        send_now(notices, Tag::notice, notice_of(0, 1, 1, 'y'));
                      });
  EXPECT_EQ(error, "[ddl] rank 0: rank 1 gave up: " + std::string(496, 'y'));
}

TEST(StrangersTest, AVoteOfNobodyAndATextWithoutEndAreRefused) {
  struct Vote {
    Call call;
    int64_t rank = 0;
  };
  for (const int64_t rank : {int64_t{1} << 40, int64_t{-3}, int64_t{1}}) {
    const std::string error = error_of_rank_0([](Communicator& comm) { barrier(comm); },
                                              [&](Transport& world, Transport&) {
                                                Vote vote{{.operation = static_cast<Operation>(77), .count = 5}, rank};
                                                vote.call.detail.fill('z');
                                                send_now(world, Tag::agreement, std::array{vote, vote});
                                              });
    const std::string wanted = rank == 1 ? str("an unknown operation of 5 ", std::string(40, 'z'), ", signature 0")
                                         : "something else than a vote";
    EXPECT_NE(error.find(wanted), std::string::npos) << error;
  }
}

TEST(StrangersTest, ARefusalOfNonsensicalSizeIsAnError) {
  SharedTexts texts;
  std::array<std::string, 2> errors;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      Communicator comm(socket_transport(rank, 2, texts, options_of(0)), {.deadline = kDeadline});
      try {
        const int64_t told = int64_t{1} << 50;
        std::array<int64_t, 2> all{};
        if (rank == 0) throw_on_all_ranks(comm, "");
        if (rank == 1) allgather(comm, std::as_bytes(std::span(&told, 1)), std::as_writable_bytes(std::span(all)));
        if (rank == 1) barrier(comm);
      } catch (const CommError& error) {
        errors[rank] = error.what();
      }
    });
  for (std::thread& rank : ranks) rank.join();
  for (const std::string& error : errors) EXPECT_NE(error.find("rank 1 refuses in"), std::string::npos) << error;
}

TEST(StrangersTest, ASecretIsNeededByTcpAndTheSameOnAllRanks) {
  Endpoints ranks(false, "some secret");
  const RankAddress address = await(ranks.texts, 0, "some secret");
  std::jthread serves([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) ranks.zero->progress();
  });
  Hello hello{.rank = 1, .token = address.token, .wire = SocketEndpoint::kLifeWire};
  EXPECT_EQ(answer_to(address, true, hello), Answer::stranger);
  hello.sign("another secret");
  EXPECT_EQ(answer_to(address, true, hello), Answer::stranger);
  hello.sign("some secret");
  EXPECT_EQ(answer_to(address, true, hello), Answer::taken);
  hello.wire = 5;  // a proof is of one wire
  EXPECT_EQ(answer_to(address, true, hello), Answer::stranger);
  serves = {};
  for (const std::string other : {"", "another secret"}) {
    SharedTexts texts;
    std::thread rank_0([&] { EXPECT_THROW(meet(0, 2, texts, options_of(0, "some secret")), std::runtime_error); });
    try {
      meet(1, 2, texts, options_of(1, other));
      ADD_FAILURE() << "no error";
    } catch (const std::runtime_error& error) {
      EXPECT_NE(std::string(error.what()).find("SPILLWAY_SECRET must be the same"), std::string::npos) << error.what();
    }
    rank_0.join();
  }
}

}  // namespace spillway::ddl::testing
