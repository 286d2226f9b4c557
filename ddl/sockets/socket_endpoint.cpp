#include "ddl/sockets/socket_endpoint.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "core/clock.h"
#include "core/error.h"
#include "ddl/sockets/system_sockets.h"

namespace spillway::ddl {
namespace {

/// The time in which a connection must say what it is for. It is no shorter than ranks wait for each other by default,
/// because the first message of a rank that is stopped right after it has connected would be lost.
constexpr std::chrono::seconds kGreetingTime{60};
/// The number of connections that have not yet said it. The oldest goes for a further one.
constexpr size_t kMaxGreetings = 64;
/// The time that it has before. A rank says it at once, but on a busy machine it may be held up right after it has
/// connected, and its first message would be lost. Further connections wait in the system's queue meanwhile.
constexpr std::chrono::milliseconds kLeastTime{100};
/// The work of one call of progress(), lest a stranger who connects without end keeps it from ending.
constexpr int kMaxLooks = 64, kMaxAccepts = 256;
/// The descriptors that each rank may take, of several wires, and those of the program.
constexpr int kDescriptorsPerRank = 16, kDescriptorsBeside = 256;

void tell_stranger(const Socket& socket) {
  const Answer answer = Answer::stranger;
  send(socket.fd(), &answer, sizeof answer, MSG_NOSIGNAL | MSG_DONTWAIT);
}

Socket dup_of(const Socket& socket) {
  return Socket::take([&] { return dup(socket.fd()); });
}

}  // namespace

SocketEndpoint::SocketEndpoint(int rank, int size, const SocketOptions& options)
    : rank_(rank), secret_(options.secret), peers_(size) {
  allow_descriptors(kDescriptorsPerRank * size + kDescriptorsBeside);
  epoll_ = Socket::take([] { return epoll_create1(EPOLL_CLOEXEC); });
  if (!epoll_) fail_by_system("epoll_create1");
  tcp_ = listen_by_tcp(options.address);
  watch(tcp_.fd());
  RankAddress& own = peers_[rank_].address;
  own.unix_name = str("spillway-", getpid(), "-", random_number());
  unix_ = listen_by_unix(own.unix_name);
  watch(unix_.fd());
  refill_spare();
  own.host = options.host.empty() ? host_identity() : options.host;
  own.token = random_number();
  own.life = random_number();
  own.address = options.address;
  own.port = port_of(tcp_);
}

SocketEndpoint::~SocketEndpoint() = default;

std::pair<Socket, Hello> SocketEndpoint::connect(int rank, uint64_t wire) const {
  const Peer& peer = peers_[rank];
  Hello hello{.rank = rank_, .token = peer.address.token, .life = peers_[rank_].address.life, .wire = wire};
  hello.sign(secret_);
  try {
    return {
        peer.by_tcp ? connect_by_tcp(peer.address.address, peer.address.port) : connect_by_unix(peer.address.unix_name),
        hello};
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(str("rank ", rank, " cannot be reached: ", error.what()));
  }
}

std::vector<std::pair<int, Socket>> SocketEndpoint::take(uint64_t wire) {
  const std::lock_guard lock(mutex_);
  const auto found = arrived_.find(wire);
  if (found == arrived_.end()) return {};
  auto connections = std::move(found->second);
  arrived_.erase(found);
  return connections;
}

bool SocketEndpoint::gone(int peer) {
  const std::lock_guard lock(mutex_);
  return peers_[peer].gone;
}

void SocketEndpoint::watch(int fd) {
  epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
  if (epoll_ctl(epoll_.fd(), EPOLL_CTL_ADD, fd, &event) != 0) fail_by_system("epoll_ctl");
}

void SocketEndpoint::unwatch(int fd) {
  epoll_ctl(epoll_.fd(), EPOLL_CTL_DEL, fd, nullptr);  // closing does not do it where a child of fork() has the socket
}

void SocketEndpoint::progress() {
  const std::lock_guard lock(mutex_);
  std::array<epoll_event, 16> events;
  for (int look = 0; look < kMaxLooks; ++look) {
    const int count = epoll_wait(epoll_.fd(), events.data(), std::ssize(events), 0);
    for (int i = 0; i < count; ++i) look_at(events[i].data.fd);
    if (count <= 0) break;
  }
  forget_the_slow();
  refill_spare();
  if (!failure_.empty()) throw std::runtime_error(failure_);
}

void SocketEndpoint::look_at(int fd) {
  if (fd == tcp_.fd()) return accept_all(tcp_);
  if (fd == unix_.fd()) return accept_all(unix_);
  if (const auto found = greetings_.find(fd); found != greetings_.end()) {
    if (greet(found->second)) forget(fd);
    return;
  }
  for (Peer& peer : peers_)
    if (peer.life_here.fd() == fd) return hear(peer);
}

void SocketEndpoint::hear(Peer& peer) {
  while (true) {
    std::byte more{};
    const bool said_it = peer.word_size == peer.word.size();
    const ssize_t count = said_it ? recv(peer.life_here.fd(), &more, 1, MSG_DONTWAIT)
                                  : recv(peer.life_here.fd(), peer.word.data() + peer.word_size,
                                         peer.word.size() - peer.word_size, MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return;
    if (count <= 0 || said_it) break;  // it has ended, or says more than ranks do
    peer.word_size += count;
    if (peer.word_size < peer.word.size()) continue;
    int32_t named = -1;
    std::memcpy(&named, peer.word.data(), sizeof named);
    peer.has_met_all = named == &peer - peers_.data();
    if (!peer.has_met_all && named >= 0 && named < std::ssize(peers_)) peer.blames = named;
  }
  unwatch(peer.life_here.fd());
  peer.life_here.close();
  peer.gone = true;
}

// ---- connections that come

void SocketEndpoint::accept_all(const Socket& listener) {
  const bool by_tcp = &listener == &tcp_;
  for (int i = 0; i < kMaxAccepts && make_room(); ++i) {
    Socket socket = accept_from(listener, by_tcp);
    if (socket) {
      add_greeting(std::move(socket), by_tcp);
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    const bool used_up = errno == EMFILE || errno == ENFILE;
    if (!used_up || !free_a_descriptor()) return;
  }
}

bool SocketEndpoint::make_room() {
  return greetings_.size() < kMaxGreetings || forget_the_oldest(kLeastTime);
}

bool SocketEndpoint::free_a_descriptor() {
  if (forget_the_oldest({})) return true;
  if (spare_) {
    spare_.close();
    return true;
  }
  if (failure_.empty()) failure_ = str("a connection of another rank cannot be taken: ", descriptor_limit());
  return false;
}

void SocketEndpoint::refill_spare() {
  if (!spare_) spare_ = dup_of(epoll_);
}

void SocketEndpoint::add_greeting(Socket socket, bool by_tcp) {
  if (!by_tcp && !is_of_own_user(socket)) return tell_stranger(socket);
  const int fd = socket.fd();
  watch(fd);
  Greeting& greeting = greetings_[fd];
  greeting = {.socket = std::move(socket), .by_tcp = by_tcp, .start = Clock::now()};
  if (greet(greeting)) forget(fd);
}

void SocketEndpoint::forget(int fd) {
  const auto found = greetings_.find(fd);
  if (found->second.socket) unwatch(fd);  // else it was welcome
  greetings_.erase(found);
}

bool SocketEndpoint::forget_the_oldest(std::chrono::milliseconds least) {
  const auto is_older = [](const auto& one, const auto& other) { return one.second.start < other.second.start; };
  const auto oldest = std::min_element(greetings_.begin(), greetings_.end(), is_older);
  if (oldest == greetings_.end()) return false;
  // A rank may have said it meanwhile.
  if (!greet(oldest->second) && Clock::now() - oldest->second.start < least) return false;
  forget(oldest->first);
  return true;
}

void SocketEndpoint::forget_the_slow() {
  for (auto entry = greetings_.begin(); entry != greetings_.end();) {
    auto& [fd, greeting] = *entry++;
    if (Clock::now() - greeting.start <= kGreetingTime) continue;
    greet(greeting);  // a rank that was late may have said it
    forget(fd);
  }
}

bool SocketEndpoint::greet(Greeting& greeting) {
  while (greeting.size < sizeof(Hello)) {
    const ssize_t count =
        recv(greeting.socket.fd(), greeting.bytes.data() + greeting.size, sizeof(Hello) - greeting.size, MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return false;
    if (count <= 0) return true;  // a stranger who left
    greeting.size += count;
  }
  Hello hello;
  std::memcpy(&hello, greeting.bytes.data(), sizeof hello);
  if (hello.is_for(rank_, std::ssize(peers_), peers_[rank_].address.token, secret_))
    welcome(greeting, hello);
  else
    tell_stranger(greeting.socket);
  return true;
}

void SocketEndpoint::welcome(Greeting& greeting, const Hello& hello) {
  if (hello.wire == kLifeWire) return welcome_life(greeting, hello);
  auto& connections = arrived_[hello.wire];
  const auto is_senders = [&](const auto& connection) { return connection.first == hello.rank; };
  if (std::any_of(connections.begin(), connections.end(), is_senders)) return;
  unwatch(greeting.socket.fd());
  connections.emplace_back(hello.rank, std::move(greeting.socket));
}

void SocketEndpoint::welcome_life(Greeting& greeting, const Hello& hello) {
  Peer& peer = peers_[hello.rank];
  const Answer answer = peer.has_come ? Answer::taken : Answer::welcome;
  const bool told = send(greeting.socket.fd(), &answer, sizeof answer, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof answer;
  if (peer.has_come || !told) return;
  peer.has_come = true;
  peer.came_by_tcp = greeting.by_tcp;
  peer.life_number = hello.life;
  peer.life_here = std::move(greeting.socket);  // stays watched
  hear(peer);
}

}  // namespace spillway::ddl
