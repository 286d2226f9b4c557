#include "tools/bench/worker.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <system_error>
#include <utility>

namespace spillway::tools {

using nlohmann::json;

Worker::Worker(std::string name, std::vector<std::string> arguments) : name_(std::move(name)) {
  int to[2], from[2];
  if (::pipe2(to, O_CLOEXEC) != 0 || ::pipe2(from, O_CLOEXEC) != 0)
    throw std::system_error(errno, std::generic_category(), "pipe");
  pid_ = ::fork();
  if (pid_ < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (pid_ == 0) {
    ::dup2(to[0], STDIN_FILENO);
    ::dup2(from[1], STDOUT_FILENO);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    ::execv("/proc/self/exe", argv.data());
    ::_exit(127);
  }
  ::close(to[0]);
  ::close(from[1]);
  to_ = ::fdopen(to[1], "w");
  from_ = ::fdopen(from[0], "r");
}

Worker::~Worker() {
  if (to_) std::fclose(to_);
  std::fclose(from_);
  ::waitpid(pid_, nullptr, 0);
}

json Worker::step() {
  std::fputs("step\n", to_);
  std::fflush(to_);
  return read();
}

json Worker::finish() {
  std::fclose(std::exchange(to_, nullptr));
  return read();
}

json Worker::read() {
  char* line = nullptr;
  size_t size = 0;
  const ssize_t length = ::getline(&line, &size, from_);
  std::string text(line ? line : "", length > 0 ? static_cast<size_t>(length) : 0);
  std::free(line);
  if (length <= 0) throw std::runtime_error("[bench] the process that ran '" + name_ + "' ended early");
  return json::parse(text);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n == 0 ? 0 : n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

}  // namespace spillway::tools
