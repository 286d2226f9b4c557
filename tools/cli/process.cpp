#include "tools/cli/process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace spillway::tools {
namespace {

/// Becomes the program. Calls only functions that the child of a process with several threads may call.
[[noreturn]] void become(const char* file, char* const* argv, const Streams& streams, int signal, pid_t parent) {
  if (signal != 0) ::prctl(PR_SET_PDEATHSIG, signal);
  if (signal != 0 && ::getppid() != parent) ::_exit(127);
  if (streams.in >= 0) ::dup2(streams.in, STDIN_FILENO);
  if (streams.out >= 0) ::dup2(streams.out, STDOUT_FILENO);
  if (streams.err >= 0) ::dup2(streams.err, STDERR_FILENO);
  ::execv(file, argv);
  ::_exit(127);
}

}  // namespace

void Descriptor::close() {
  if (number_ >= 0) ::close(number_);
  number_ = -1;
}

int Descriptor::release() {
  return std::exchange(number_, -1);
}

Pipe::Pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
  from.set(ends[0]);
  to.set(ends[1]);
}

std::vector<char*> arguments_of(std::vector<std::string>& words) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  return argv;
}

pid_t start_process(const std::string& file, std::vector<std::string> words, const Streams& streams,
                    int signal_at_our_end) {
  const std::vector<char*> argv = arguments_of(words);
  const pid_t parent = ::getpid(), child = ::fork();
  if (child < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (child == 0) become(file.c_str(), argv.data(), streams, signal_at_our_end, parent);
  return child;
}

}  // namespace spillway::tools
