#include "benchmarks/commands/worker.h"

#include <sys/wait.h>

#include <cstdlib>
#include <stdexcept>
#include <utility>

#include "tools/cli/process.h"

namespace spillway::tools {

using nlohmann::json;

Worker::Worker(std::string name, std::vector<std::string> arguments) : name_(std::move(name)) {
  Pipe to, from;
  pid_ = start_process("/proc/self/exe", std::move(arguments), {.in = to.from.number(), .out = from.to.number()});
  to_ = ::fdopen(to.to.release(), "w");
  from_ = ::fdopen(from.from.release(), "r");
}

Worker::~Worker() {
  if (to_) std::fclose(to_);
  std::fclose(from_);
  ::waitpid(pid_, nullptr, 0);
}

void Worker::wait_until_ready() {
  (void)ask("ready\n");
}

json Worker::step() {
  return ask("step\n");
}

json Worker::ask(const char* line) {
  std::fputs(line, to_);
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

}  // namespace spillway::tools
