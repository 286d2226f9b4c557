#include "ddl/sockets/socket.h"

#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <mutex>
#include <system_error>
#include <vector>

namespace spillway::ddl {

/// The descriptors of this process's Sockets, for the handlers of fork().
struct SocketForks {
  std::mutex mutex;
  std::vector<bool> open;  ///< by descriptor

  SocketForks() {
    if (const int error = ::pthread_atfork(&before, &after_in_parent, &after_in_child))
      throw std::system_error(error, std::generic_category(), "[ddl] pthread_atfork");
  }
  /// Returns the only one. It is never destroyed, because Sockets may live as long as the process.
  static SocketForks& all() {
    static auto* const forks = new SocketForks;
    return *forks;
  }
  static void before() { all().mutex.lock(); }
  static void after_in_parent() { all().mutex.unlock(); }
  /// Closes without shutdown(), which would end the parent's connections. Allocates nothing.
  static void after_in_child() {
    SocketForks& forks = all();
    for (size_t fd = 0; fd < forks.open.size(); ++fd) {
      if (forks.open[fd]) ::close(static_cast<int>(fd));
      forks.open[fd] = false;
    }
    ++Socket::forks_so_far;
    forks.mutex.unlock();
  }
};

Socket Socket::take(const std::function<int()>& make) {
  SocketForks& forks = SocketForks::all();
  const std::lock_guard lock(forks.mutex);
  Socket socket;
  const int fd = make();
  if (fd < 0) return socket;
  const auto place = static_cast<size_t>(fd);
  if (place >= forks.open.size()) forks.open.resize(place + 1);
  forks.open[place] = true;
  socket.fd_ = fd;
  return socket;
}

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = std::exchange(other.fd_, -1);
    forks_ = other.forks_;
  }
  return *this;
}

void Socket::close() noexcept {
  const int fd = std::exchange(fd_, -1);
  if (fd < 0 || inherited()) return;
  SocketForks& forks = SocketForks::all();
  const std::lock_guard lock(forks.mutex);
  forks.open[static_cast<size_t>(fd)] = false;
  ::shutdown(fd, SHUT_RDWR);
  ::close(fd);
}

}  // namespace spillway::ddl
