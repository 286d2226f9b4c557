/// Reads and writes of a file, several at once.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

namespace spillway::swap {

/// One read or write, which is over when all bytes have moved or an error is known.
struct DiskOperation {
  int descriptor = -1;
  bool write = false;
  char* data = nullptr;
  int64_t bytes = 0;
  int64_t offset = 0;

  int64_t moved_bytes = 0;
  int error = 0;            ///< an errno value
  bool file_ended = false;  ///< a read came to the end of the file
  int stalls = 0;

  /// Takes the result of a system call for the remaining bytes: a count, or a negative errno value. Returns true once
  /// the operation is over.
  bool advance(int64_t result) noexcept;
  bool failed() const noexcept { return error != 0 || file_ended; }
};

/// An engine that carries out operations. Used by one thread.
class DiskIo {
 public:
  virtual ~DiskIo() = default;
  /// Starts an operation, which must stay where it is until wait() returns it. Throws std::system_error when it cannot
  /// be started.
  virtual void start(DiskOperation& operation) = 0;
  /// Blocks until one of the started operations is over, and returns it. Does not throw: the operation holds its error.
  virtual DiskOperation& wait() = 0;
  /// Returns the name for messages: `io_uring`, `2 threads`.
  virtual std::string name() const = 0;
};

/// Makes an engine of blocking reads and writes on `threads` threads.
std::unique_ptr<DiskIo> make_thread_io(int threads);

/// Makes an engine on the kernel's submission ring, for at most `depth` operations at once. Returns nullptr, with the
/// reason in `why_not`, when this build does not have it or a container forbids a part of it. It does so too when the
/// kernel is older than Linux 5.6.
std::unique_ptr<DiskIo> make_uring_io(int depth, std::string& why_not);

}  // namespace spillway::swap
