#include "tools/ddlrun/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <system_error>
#include <thread>

#include "core/clock.h"
#include "core/error.h"
#include "core/program.h"
#include "tools/cli/process.h"
#include "tools/ddlrun/shell.h"

namespace spillway::ddlrun {
namespace {

using tools::Descriptor;
using tools::Pipe;

constexpr size_t kMaxAtOnce = 64;
constexpr std::chrono::milliseconds kPatience{2000};

std::string required_program(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::string file = find_program(name, path ? path : kDefaultPath);
  if (file.empty()) throw BadRequest(str("there is no program '", name, "' (searched in PATH)"));
  return file;
}

pid_t start(const std::vector<std::string>& words, const Pipe& out, const Pipe& err) {
  const Descriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  return tools::start_process(required_program(words.front()), words,
                              {nothing.number(), out.to.number(), err.to.number()}, SIGTERM);
}

/// Appends the bytes that can be read now. Returns false when no more will come.
bool read_from(const Descriptor& pipe, std::string& text) {
  char buffer[65536];
  while (true) {
    const ssize_t bytes = ::read(pipe.number(), buffer, sizeof buffer);
    if (bytes > 0) text.append(buffer, bytes);
    if (bytes == 0) return false;
    if (bytes < 0) return errno == EAGAIN || errno == EINTR;
  }
}

/// A child process. Its own end counts, not that of its pipes, because it may leave other processes with its pipes, as
/// ssh's shared connections do.
class Child {
 public:
  explicit Child(const std::vector<std::string>& command) : pid_(start(command, out_, err_)) {
    for (Pipe* pipe : {&out_, &err_}) {
      pipe->to.close();
      ::fcntl(pipe->from.number(), F_SETFL, O_NONBLOCK);
    }
  }

  /// Reads the child's output until the child has ended (true) or `until` has come (false).
  bool listen(Clock::time_point until, Outcome& outcome) {
    while (true) {
      pollfd ends[2] = {{out_.from.number(), POLLIN, 0}, {err_.from.number(), POLLIN, 0}};
      if (out_.from.number() < 0 && err_.from.number() < 0)
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      else
        ::poll(ends, 2, 20);
      int status = 0;
      const bool ended = ::waitpid(pid_, &status, WNOHANG) == pid_;
      if (out_.from.number() >= 0 && !read_from(out_.from, outcome.out)) out_.from.close();
      if (err_.from.number() >= 0 && !read_from(err_.from, outcome.err)) err_.from.close();
      if (ended) outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      if (ended || Clock::now() >= until) return ended;
    }
  }

  void signal(int number) const { ::kill(pid_, number); }

 private:
  Pipe out_, err_;
  pid_t pid_;
};

constexpr int kPassedOn[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

// The only data that the signal handler reaches.
std::atomic<pid_t> launcher = 0;
std::atomic<int> requests_to_end = 0;
static_assert(std::atomic<pid_t>::is_always_lock_free);

/// Asks the ranks to end, and again a second later, because mpirun loses the signal while it starts them.
void ask_ranks_to_end() {
  ::kill(launcher, SIGUSR2);
  ::alarm(1);
}

void pass_on(int number) {
  if (number == SIGUSR1 || number == SIGUSR2) {
    ::kill(launcher, number);
  } else if (requests_to_end++ == 0) {
    ask_ranks_to_end();
  } else {
    ::alarm(0);
    ::kill(launcher, SIGTERM);
  }
}

/// The signals that are passed on. They wait while this object lives.
class SignalsHeld {
 public:
  SignalsHeld() {
    sigset_t held;
    ::sigemptyset(&held);
    for (const int number : kPassedOn) ::sigaddset(&held, number);
    ::sigprocmask(SIG_BLOCK, &held, &before_);
  }
  ~SignalsHeld() { release(); }
  SignalsHeld(const SignalsHeld&) = delete;
  SignalsHeld& operator=(const SignalsHeld&) = delete;
  void release() const { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

void pass_signals_on() {
  struct sigaction action {};
  action.sa_handler = pass_on;
  action.sa_flags = SA_RESTART;
  for (const int number : kPassedOn) ::sigaction(number, &action, nullptr);
  action.sa_handler = [](int) { ask_ranks_to_end(); };
  ::sigaction(SIGALRM, &action, nullptr);
}

/// Turns a child of this process into the program, in a process group of its own.
[[noreturn]] void become_supervised(const std::vector<std::string>& command, pid_t parent, const SignalsHeld& held) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(kFailure);
  const int nothing = ::open("/dev/null", O_RDONLY);
  ::dup2(nothing, STDIN_FILENO);
  held.release();
  become(command);
}

}  // namespace

Outcome run(const std::vector<std::string>& command, std::chrono::milliseconds deadline) {
  Outcome outcome;
  Child child(command);
  if (child.listen(Clock::now() + deadline, outcome)) return outcome;
  outcome.timed_out = true;
  child.signal(SIGTERM);
  if (child.listen(Clock::now() + kPatience, outcome)) return outcome;
  child.signal(SIGKILL);
  child.listen(Clock::time_point::max(), outcome);
  return outcome;
}

std::vector<Outcome> run_all(const std::vector<std::vector<std::string>>& commands,
                             std::chrono::milliseconds deadline) {
  std::vector<Outcome> outcomes(commands.size());
  std::vector<std::exception_ptr> errors(commands.size());
  std::atomic<size_t> next = 0;
  const auto end = Clock::now() + deadline;
  const auto left = [&] { return std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()); };
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < std::min(kMaxAtOnce, commands.size()); ++i)
      threads.emplace_back([&] {
        for (size_t mine = next++; mine < commands.size(); mine = next++) try {
            if (const auto time = left(); time.count() > 0)
              outcomes[mine] = run(commands[mine], time);
            else
              outcomes[mine].timed_out = true;
          } catch (...) {
            errors[mine] = std::current_exception();
          }
      });
  }
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
  return outcomes;
}

void become(const std::vector<std::string>& command) {
  const std::string file = required_program(command.front());
  auto words = command;
  const auto argv = tools::arguments_of(words);
  ::execv(file.c_str(), argv.data());
  throw std::system_error(errno, std::generic_category(), "cannot start " + file);
}

int supervise(const std::vector<std::string>& command) {
  const pid_t parent = ::getpid();
  const SignalsHeld held;
  const pid_t child = ::fork();
  if (child < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (child == 0) become_supervised(command, parent, held);
  launcher = child;
  pass_signals_on();
  held.release();
  int status = 0;
  while (::waitpid(child, &status, 0) != child)
    if (errno != EINTR) throw std::system_error(errno, std::generic_category(), "waitpid");
  ::alarm(0);
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  // A rank that is not training yet has no state to save, so the signal ends it.
  return requests_to_end > 0 && code == 128 + SIGUSR2 ? kInterrupted : code;
}

std::string last_line(const std::string& text) {
  const size_t end = text.find_last_not_of(" \t\r\n");
  if (end == std::string::npos) return "";
  const size_t begin = text.find_last_of('\n', end);
  const std::string line = text.substr(begin + 1, end - begin);
  return line.substr(line.find_first_not_of(" \t\r"));
}

}  // namespace spillway::ddlrun
