#include "ddl/sockets/system_sockets.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "core/error.h"

namespace spillway::ddl {
namespace {

/// The bytes that a Unix socket keeps on their way, where the system allows as many.
constexpr int kUnixBuffer = 4 << 20;

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

/// Describes why no socket can be made.
[[noreturn]] void fail_to_make(int error) {
  const bool too_many = error == EMFILE || error == ENFILE;
  fail_by_system(str("no socket can be made", too_many ? str("; ", descriptor_limit()) : ""), error);
}

Socket new_socket(int family) {
  Socket socket = Socket::take([&] { return ::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
  if (!socket) fail_to_make(errno);
  return socket;
}

void set(const Socket& socket, int level, int option, int value) {
  setsockopt(socket.fd(), level, option, &value, sizeof value);  // what the system does not allow stays as it is
}

/// Sets the options of a connection. TCP's buffers are left to the system, which lets them grow; a fixed size ends
/// that.
void tune(const Socket& socket, bool tcp) {
  if (tcp) {
    set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
    set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  } else {
    set(socket, SOL_SOCKET, SO_SNDBUF, kUnixBuffer);
    set(socket, SOL_SOCKET, SO_RCVBUF, kUnixBuffer);
  }
}

/// Returns the address of an abstract Unix socket, and its length.
std::pair<sockaddr_un, socklen_t> unix_address(const std::string& name) {
  sockaddr_un address = {};
  if (name.size() >= sizeof address.sun_path) throw std::runtime_error("the name of a Unix socket is too long");
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())};
}

/// Starts to connect. Returns an empty socket where the peer's queue of connections is full.
Socket connected(Socket socket, const sockaddr* address, socklen_t length, const std::string& where) {
  if (::connect(socket.fd(), address, length) == 0 || errno == EINPROGRESS || errno == EINTR) return socket;
  if (errno == EAGAIN) return {};
  fail_by_system(where);
}

std::string first_line(const char* file) {
  std::string line;
  std::getline(std::ifstream(file) >> std::ws, line);
  return line;
}

}  // namespace

void fail_by_system(const std::string& what, int error) {
  throw std::runtime_error(str(what, ": ", std::system_category().message(error)));
}

uint64_t random_number() {
  uint64_t number = 0;
  if (getrandom(&number, sizeof number, 0) != sizeof number) fail_by_system("getrandom");
  return number;
}

// Virtual machines that were started from one snapshot have one boot_id, and the same numbers of namespaces.
std::string host_identity() {
  struct stat network = {};
  if (stat("/proc/self/ns/net", &network) != 0) fail_by_system("/proc/self/ns/net");
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  std::string identity = str(first_line("/proc/sys/kernel/random/boot_id"), '/', network.st_ino, '/', name.data(), '/',
                             first_line("/etc/machine-id").substr(0, 64));
  const auto is_blank = [](char c) { return c <= ' ' || c > '~'; };
  std::replace_if(identity.begin(), identity.end(), is_blank, '_');
  return identity;
}

Socket listen_by_tcp(const std::string& address) {
  const AddressList addresses(address, "0", AI_PASSIVE);
  Socket listener = new_socket(addresses.first->ai_family);
  if (bind(listener.fd(), addresses.first->ai_addr, addresses.first->ai_addrlen) != 0)
    fail_by_system(str("this host has no address ", address));
  if (::listen(listener.fd(), SOMAXCONN) != 0) fail_by_system("listen");
  return listener;
}

Socket listen_by_unix(const std::string& name) {
  Socket listener = new_socket(AF_UNIX);
  const auto [address, length] = unix_address(name);
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);  // NOLINT: how the system's interface is made
  if (bind(listener.fd(), generic, length) != 0) fail_by_system("bind");
  if (::listen(listener.fd(), SOMAXCONN) != 0) fail_by_system("listen");
  return listener;
}

std::string port_of(const Socket& listener) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  char port[NI_MAXSERV] = "";
  auto* generic = reinterpret_cast<sockaddr*>(&address);  // NOLINT: as above
  if (getsockname(listener.fd(), generic, &size) != 0) fail_by_system("getsockname");
  getnameinfo(generic, size, nullptr, 0, port, sizeof port, NI_NUMERICSERV);
  return port;
}

Socket connect_by_tcp(const std::string& address, const std::string& port) {
  const AddressList addresses(address, port, 0);
  Socket socket = new_socket(addresses.first->ai_family);
  tune(socket, true);
  return connected(std::move(socket), addresses.first->ai_addr, addresses.first->ai_addrlen,
                   str("its address ", address, ", port ", port));
}

Socket connect_by_unix(const std::string& name) {
  Socket socket = new_socket(AF_UNIX);
  tune(socket, false);
  const auto [address, length] = unix_address(name);
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);  // NOLINT: as above
  socket = connected(std::move(socket), generic, length, "its Unix socket");
  if (socket && !is_of_own_user(socket)) fail_by_system("its Unix socket is another user's", EACCES);
  return socket;
}

Socket accept_from(const Socket& listener, bool tcp) {
  Socket socket = Socket::take([&] { return accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC); });
  const int error = errno;
  if (socket) tune(socket, tcp);
  errno = error;
  return socket;
}

bool is_of_own_user(const Socket& socket) {
  ucred other = {};
  socklen_t size = sizeof other;
  return getsockopt(socket.fd(), SOL_SOCKET, SO_PEERCRED, &other, &size) == 0 && other.uid == geteuid();
}

bool has_ended(const Socket& socket) {
  char byte = 0;
  const ssize_t count = recv(socket.fd(), &byte, 1, MSG_DONTWAIT | MSG_PEEK);
  return count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR && errno != ENOTCONN);
}

void allow_descriptors(int more) {
  rlimit limit = {};
  const int next = ::open("/dev/null", O_RDONLY | O_CLOEXEC);  // about the number of those that are open
  if (next >= 0) ::close(next);
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const auto wanted = std::min(static_cast<rlim_t>(std::max(next, 0) + more), limit.rlim_max);
  if (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  setrlimit(RLIMIT_NOFILE, &limit);  // where it is not allowed, the error that may come names the limit
}

std::string descriptor_limit() {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  return str("this process may have ", limit.rlim_cur, " descriptors (ulimit -n), and all are in use");
}

}  // namespace spillway::ddl
