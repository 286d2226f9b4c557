#include "tests/fuzz/answerer.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <system_error>

#include "tests/fuzz/support.h"

namespace spillway::fuzz {
using namespace swap;
namespace {

constexpr char kAnswered = '+', kRefused = '-';  // the first byte of the process's reply
constexpr timeval kMaxWait{10, 0};

bool read_all(int socket, void* bytes, size_t count) {
  auto* place = static_cast<char*>(bytes);
  while (count > 0) {
    const ssize_t taken = ::recv(socket, place, count, 0);
    if (taken < 0 && errno == EINTR) continue;
    if (taken <= 0) return false;
    place += taken;
    count -= static_cast<size_t>(taken);
  }
  return true;
}

bool write_all(int socket, const void* bytes, size_t count) {
  const auto* place = static_cast<const char*>(bytes);
  while (count > 0) {
    const ssize_t given = ::send(socket, place, count, MSG_NOSIGNAL);
    if (given < 0 && errno == EINTR) continue;
    if (given <= 0) return false;
    place += given;
    count -= static_cast<size_t>(given);
  }
  return true;
}

bool say(int socket, std::string_view text) {
  const uint64_t size = text.size();
  return write_all(socket, &size, sizeof size) && write_all(socket, text.data(), text.size());
}

std::optional<std::string> hear(int socket) {
  uint64_t size = 0;
  if (!read_all(socket, &size, sizeof size)) return {};
  std::string text(size, '\0');
  if (!read_all(socket, text.data(), text.size())) return {};
  return text;
}

}  // namespace

Answerer::~Answerer() {
  end();
}

void Answerer::start() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    throw std::system_error(errno, std::generic_category(), "socketpair");
  process_ = ::fork();
  if (process_ == 0) {
    ::close(ends[0]);
    serve(ends[1]);
  }
  ::close(ends[1]);
  socket_ = ends[0];
  if (process_ < 0) throw std::system_error(errno, std::generic_category(), "fork");
  ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &kMaxWait, sizeof kMaxWait);
}

int Answerer::end() noexcept {
  int status = 0;
  if (socket_ >= 0) ::close(socket_);
  if (process_ > 0) {
    ::kill(process_, SIGKILL);
    while (::waitpid(process_, &status, 0) < 0 && errno == EINTR) {
    }
  }
  socket_ = -1;
  process_ = -1;
  return status;
}

void Answerer::serve(int socket) {
  // Default handlers are restored because those of sanitizers and of libFuzzer would take a crash for a finding.
  for (const int number : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGTERM, SIGINT, SIGALRM})
    std::signal(number, SIG_DFL);
  const int sink = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (sink >= 0) (void)::dup2(sink, STDERR_FILENO);
  while (const auto question = hear(socket)) {
    std::string answer;
    try {
      answer = kAnswered + answer_(*question);
    } catch (const std::exception& refusal) {
      answer = kRefused + std::string(refusal.what());
    }
    if (!say(socket, answer)) break;
  }
  ::_exit(0);
}

std::optional<std::string> Answerer::ask(std::string_view question) {
  if (process_ < 0) start();
  std::optional<std::string> answer;
  if (say(socket_, question)) answer = hear(socket_);
  if (!answer) {
    require(!WIFEXITED(end()), "a sanitizer finds nothing in the process that answers");
    return {};
  }
  const bool refused = answer->front() == kRefused;
  answer->erase(0, 1);
  if (refused) throw BadRequest(*answer);
  return answer;
}

}  // namespace spillway::fuzz
