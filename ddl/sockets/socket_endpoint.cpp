#include "ddl/sockets/socket_endpoint.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <system_error>

#include "core/clock.h"
#include "core/error.h"

namespace spillway::ddl {
namespace {

/// The wire of the connections whose end tells that a rank has ended.
constexpr uint64_t kLifeWire = 0;
/// The time in which a connection must say what it is for.
constexpr std::chrono::seconds kGreetingTime{10};

[[noreturn]] void fail(const std::string& what, int error = errno) {
  throw std::runtime_error(str(what, ": ", std::system_category().message(error)));
}

uint64_t random_number() {
  uint64_t number = 0;
  if (getrandom(&number, sizeof number, 0) != sizeof number) fail("getrandom");
  return number;
}

/// Returns a text that is the same for processes which reach each other's abstract Unix sockets, and for no others.
std::string host_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat network = {};
  if (stat("/proc/self/ns/net", &network) != 0) fail("/proc/self/ns/net");
  return str(boot, "/", network.st_ino);
}

struct AddressList {
  explicit AddressList(const std::string& address, const std::string& port, int flags) {
    addrinfo hints = {};
    hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | flags;
    hints.ai_socktype = SOCK_STREAM;
    if (const int code = getaddrinfo(address.c_str(), port.c_str(), &hints, &first); code != 0)
      throw std::runtime_error(str("'", address, "' is no IPv4 or IPv6 address: ", gai_strerror(code)));
  }
  ~AddressList() { freeaddrinfo(first); }
  AddressList(const AddressList&) = delete;
  AddressList& operator=(const AddressList&) = delete;
  addrinfo* first = nullptr;
};

Socket new_socket(int family) {
  Socket socket(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) fail("no socket can be made");
  return socket;
}

void set(const Socket& socket, int level, int option, int value) {
  setsockopt(socket.fd(), level, option, &value, sizeof value);  // what the system does not allow stays as it is
}

void widen(const Socket& socket, bool tcp) {
  set(socket, SOL_SOCKET, SO_SNDBUF, 4 << 20);
  set(socket, SOL_SOCKET, SO_RCVBUF, 4 << 20);
  if (!tcp) return;
  set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
}

/// Returns the address of an abstract Unix socket, and its length.
std::pair<sockaddr_un, socklen_t> unix_address(const std::string& name) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())};
}

std::string port_of(const Socket& listener) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  char port[NI_MAXSERV] = "";
  auto* generic = reinterpret_cast<sockaddr*>(&address);  // NOLINT: how the system's interface is made
  if (getsockname(listener.fd(), generic, &size) != 0) fail("getsockname");
  getnameinfo(generic, size, nullptr, 0, port, sizeof port, NI_NUMERICSERV);
  return port;
}

}  // namespace

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void Socket::close() noexcept {
  if (fd_ < 0) return;
  ::shutdown(fd_, SHUT_RDWR);
  ::close(std::exchange(fd_, -1));
}

SocketEndpoint::SocketEndpoint(int rank, int size, Rendezvous& rendezvous, const SocketOptions& options)
    : rank_(rank), token_(random_number()), epoll_(epoll_create1(EPOLL_CLOEXEC)), peers_(size) {
  if (!epoll_) fail("epoll_create1");
  listen(options);
  publish(rendezvous, options);
  read_peers(rendezvous);
  connect_to_all(options.deadline);
}

SocketEndpoint::~SocketEndpoint() = default;

void SocketEndpoint::listen(const SocketOptions& options) {
  const AddressList addresses(options.address, "0", AI_PASSIVE);
  tcp_ = new_socket(addresses.first->ai_family);
  widen(tcp_, true);
  if (bind(tcp_.fd(), addresses.first->ai_addr, addresses.first->ai_addrlen) != 0)
    fail(str("this host has no address ", options.address));
  if (::listen(tcp_.fd(), SOMAXCONN) != 0) fail("listen");
  watch(tcp_.fd());
  unix_ = new_socket(AF_UNIX);
  peers_[rank_].unix_name = str("spillway-", getpid(), "-", random_number());
  const auto [address, length] = unix_address(peers_[rank_].unix_name);
  if (bind(unix_.fd(), reinterpret_cast<const sockaddr*>(&address), length) != 0) fail("bind");  // NOLINT: as above
  if (::listen(unix_.fd(), SOMAXCONN) != 0) fail("listen");
  watch(unix_.fd());
}

void SocketEndpoint::publish(Rendezvous& rendezvous, const SocketOptions& options) {
  std::ostringstream text;
  text << (options.host.empty() ? host_identity() : options.host) << ' ' << token_ << ' ' << options.address << ' '
       << port_of(tcp_) << ' ' << peers_[rank_].unix_name;
  rendezvous.set(str("spillway/", rank_), text.str());
}

void SocketEndpoint::read_peers(Rendezvous& rendezvous) {
  std::vector<std::string> hosts;
  for (int r = 0; r < std::ssize(peers_); ++r) {
    Peer& peer = peers_[r];
    std::istringstream text(rendezvous.get(str("spillway/", r)));
    text >> peer.host >> peer.token >> peer.address >> peer.port >> peer.unix_name;
    if (!text) throw std::runtime_error(str("rank ", r, " published something else than its addresses"));
    const auto found = std::find(hosts.begin(), hosts.end(), peer.host);
    hosts_.push_back(static_cast<int>(found - hosts.begin()));
    if (found == hosts.end()) hosts.push_back(peer.host);
  }
  if (hosts.size() > 1) return;
  unwatch(tcp_.fd());
  tcp_.close();  // nobody needs it
}

void SocketEndpoint::connect_to_all(std::chrono::milliseconds deadline) {
  const auto end = Clock::now() + deadline;
  for (int r = 0; r < std::ssize(peers_); ++r) {
    if (r == rank_) continue;
    auto [socket, hello] = connect(r, kLifeWire);
    while (!socket && Clock::now() < end) {
      progress();
      std::tie(socket, hello) = connect(r, kLifeWire);
    }
    pollfd connected{socket.fd(), POLLOUT, 0};
    poll(&connected, 1, static_cast<int>(deadline.count()));
    if (::send(socket.fd(), &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello) {
      const int error = errno;
      fail(str("rank ", r, " does not answer at ", hosts_[r] == hosts_[rank_] ? "its socket" : peers_[r].address),
           error);
    }
    peers_[r].life = std::move(socket);
  }
  while (!all_here()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
    if (left.count() <= 0) throw std::runtime_error("not all ranks came within the deadline");
    pollfd events{epoll_.fd(), POLLIN, 0};
    poll(&events, 1, static_cast<int>(left.count()));
    progress();
  }
}

bool SocketEndpoint::all_here() {
  const std::lock_guard lock(mutex_);
  for (int r = 0; r < std::ssize(peers_); ++r)
    if (r != rank_ && !peers_[r].life_here && !peers_[r].gone) return false;
  return true;
}

std::pair<Socket, Hello> SocketEndpoint::connect(int rank, uint64_t wire) {
  const Peer& peer = peers_[rank];
  const bool local = hosts_[rank] == hosts_[rank_];
  Hello hello{.token = peer.token, .wire = wire, .rank = rank_};
  Socket socket;
  int code = 0;
  if (local) {
    socket = new_socket(AF_UNIX);
    widen(socket, false);
    const auto [address, length] = unix_address(peer.unix_name);
    code = ::connect(socket.fd(), reinterpret_cast<const sockaddr*>(&address), length);  // NOLINT: as above
  } else {
    const AddressList addresses(peer.address, peer.port, 0);
    socket = new_socket(addresses.first->ai_family);
    widen(socket, true);
    code = ::connect(socket.fd(), addresses.first->ai_addr, addresses.first->ai_addrlen);
  }
  if (code == 0 || errno == EINPROGRESS || errno == EINTR) return {std::move(socket), hello};
  if (errno == EAGAIN) return {Socket(), hello};  // its queue of new connections is full
  fail(str("rank ", rank, " cannot be reached"));
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
  if (epoll_ctl(epoll_.fd(), EPOLL_CTL_ADD, fd, &event) != 0) fail("epoll_ctl");
}

void SocketEndpoint::progress() {
  const std::lock_guard lock(mutex_);
  std::array<epoll_event, 16> events;
  for (int count = 1; count > 0;) {
    count = epoll_wait(epoll_.fd(), events.data(), static_cast<int>(events.size()), 0);
    for (int i = 0; i < count; ++i) look_at(events[i].data.fd);
  }
  for (auto entry = greetings_.begin(); entry != greetings_.end();) {
    const auto [fd, greeting] = std::pair<int, const Greeting&>(*entry++);
    if (Clock::now() - greeting.start > kGreetingTime) forget(fd);
  }
}

void SocketEndpoint::forget(int fd) {
  const auto found = greetings_.find(fd);
  if (found->second.socket) unwatch(fd);  // else it was welcome
  greetings_.erase(found);
}

void SocketEndpoint::unwatch(int fd) {
  epoll_ctl(epoll_.fd(), EPOLL_CTL_DEL, fd, nullptr);  // closing does not do it where a child of fork() has the socket
}

void SocketEndpoint::look_at(int fd) {
  if (fd == tcp_.fd() || fd == unix_.fd()) return accept_all(fd);
  if (const auto found = greetings_.find(fd); found != greetings_.end()) {
    if (greet(found->second)) forget(fd);
    return;
  }
  for (Peer& peer : peers_) {
    if (peer.life_here.fd() != fd) continue;
    char byte = 0;
    const ssize_t count = recv(fd, &byte, 1, MSG_DONTWAIT);
    if (count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR))) return;
    unwatch(fd);
    peer.life_here.close();
    peer.gone = true;
  }
}

void SocketEndpoint::accept_all(int listener) {
  while (true) {
    Socket socket(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EMFILE || errno == ENFILE) fail("a connection cannot be taken");
      return;
    }
    widen(socket, listener == tcp_.fd());
    const int fd = socket.fd();
    Greeting& greeting = greetings_[fd];
    greeting = {.socket = std::move(socket), .start = Clock::now()};
    watch(fd);
    if (greet(greeting)) forget(fd);
  }
}

bool SocketEndpoint::greet(Greeting& greeting) {
  while (greeting.size < sizeof(Hello)) {
    const ssize_t count =
        recv(greeting.socket.fd(), greeting.bytes.data() + greeting.size, sizeof(Hello) - greeting.size, MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return false;
    if (count <= 0) return true;  // a stranger who left
    greeting.size += static_cast<size_t>(count);
  }
  Hello hello;
  std::memcpy(&hello, greeting.bytes.data(), sizeof hello);
  const bool known = hello.magic == Hello::kMagic && hello.version == Hello().version && hello.token == token_ &&
                     hello.rank >= 0 && hello.rank < std::ssize(peers_) && hello.rank != rank_;
  if (known) welcome(std::move(greeting.socket), hello);
  return true;
}

void SocketEndpoint::welcome(Socket socket, const Hello& hello) {
  if (hello.wire == kLifeWire) {
    peers_[hello.rank].life_here = std::move(socket);  // stays watched
    return;
  }
  unwatch(socket.fd());
  arrived_[hello.wire].emplace_back(hello.rank, std::move(socket));
}

}  // namespace spillway::ddl
