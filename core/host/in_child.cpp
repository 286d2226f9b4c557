#include "core/host/in_child.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <system_error>

#include "core/error.h"
#include "core/new_file.h"

namespace spillway {
namespace {

// The last byte of the child's answer. An answer without it means that the child crashed.
constexpr char kReturned = '+', kRefused = '-';

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::generic_category(), str("[child] ", what));
}

/// Resets signal handlers and drops core dumps and stderr. The handlers of MPI and sanitizers would report a crash that
/// is expected.
void die_quietly() {
  for (const int number : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGTERM}) std::signal(number, SIG_DFL);
  const struct rlimit none {};
  (void)::setrlimit(RLIMIT_CORE, &none);
  const int sink = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (sink >= 0) (void)::dup2(sink, STDERR_FILENO);
}

[[noreturn]] void answer(int pipe, const std::function<std::string()>& body) {
  std::string text;
  try {
    text = body() + kReturned;
  } catch (const std::exception& error) {
    text = std::string(error.what()) + kRefused;
  }
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = ::write(pipe, text.data() + done, text.size() - done);
    if (written < 0 && errno != EINTR) break;
    done += std::max<ssize_t>(written, 0);
  }
  ::_exit(0);
}

/// Returns all bytes that come until the other end closes; nothing when the time is up first.
std::string listen(int pipe, std::chrono::milliseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  std::string text;
  std::array<char, 1 << 14> part;
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    pollfd ready{pipe, POLLIN, 0};
    const int events = ::poll(&ready, 1, std::max<int64_t>(left.count(), 0));
    if (events < 0 && errno == EINTR) continue;
    if (events <= 0) return {};
    const ssize_t taken = ::read(pipe, part.data(), part.size());
    if (taken < 0 && errno == EINTR) continue;
    if (taken <= 0) return text;
    text.append(part.data(), taken);
  }
}

}  // namespace

std::string in_child(const std::function<std::string()>& body, std::chrono::milliseconds limit) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) fail("pipe");
  const File from(ends[0]);
  const pid_t child = ::fork();
  if (child == 0) {
    die_quietly();
    answer(ends[1], body);
  }
  const int error = errno;
  ::close(ends[1]);
  if (child < 0) throw std::system_error(error, std::generic_category(), "[child] fork");
  std::string text = listen(from.get(), limit);
  ::kill(child, SIGKILL);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (text.empty() || (text.back() != kReturned && text.back() != kRefused))
    throw BadRequest(WIFEXITED(status) ? str("a library ended its process with exit code ", WEXITSTATUS(status))
                                       : "a library crashed on it, or took too long");
  const bool refused = text.back() == kRefused;
  text.pop_back();
  if (refused) throw BadRequest(text);
  return text;
}

}  // namespace spillway
