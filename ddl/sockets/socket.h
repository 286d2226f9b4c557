/// Descriptors of sockets, which end with their owners and do not outlive a fork().
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>

namespace spillway::ddl {

/// The time in which a rank's last words may come after its end was noticed on another connection, because connections
/// travel on their own.
inline constexpr std::chrono::milliseconds kGraceAfterEnd{200};

/// A file descriptor that is closed with its owner. A child of fork() closes its copies at once, because a peer would
/// not notice this process's end while a copy lives. In the child a Socket is therefore without a descriptor.
class Socket {
 public:
  Socket() = default;
  /// Takes the descriptor that `make` returns; a negative one makes an empty Socket. A fork() waits while `make` runs,
  /// so it must not block. Keeps errno.
  static Socket take(const std::function<int()>& make);
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)), forks_(other.forks_) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket() { close(); }
  /// Returns the descriptor, or -1 where there is none.
  int fd() const noexcept { return inherited() ? -1 : fd_; }
  /// True in a child of fork(), where the descriptor was its parent's.
  bool inherited() const noexcept { return forks_ != forks_so_far.load(std::memory_order_relaxed); }
  explicit operator bool() const noexcept { return fd() >= 0; }
  /// Ends the connection and closes the descriptor.
  void close() noexcept;

 private:
  friend struct SocketForks;
  /// The number of forks between the first process and this one. It is global because handlers of fork() get no
  /// arguments.
  static inline std::atomic<uint32_t> forks_so_far{0};

  int fd_ = -1;
  uint32_t forks_ = forks_so_far.load(std::memory_order_relaxed);
};

}  // namespace spillway::ddl
