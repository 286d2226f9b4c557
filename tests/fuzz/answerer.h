/// A process that answers one question after another, for libraries that crash on some of them.
#pragma once
#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace spillway::fuzz {

/// in_child() starts a process for each question, which takes a millisecond under sanitizers; this one starts another
/// only after a crash.
class Answerer {
 public:
  /// `answer` runs in the process. ask() throws what it throws, as BadRequest.
  explicit Answerer(std::function<std::string(const std::string&)> answer) : answer_(std::move(answer)) {}
  Answerer(const Answerer&) = delete;
  Answerer& operator=(const Answerer&) = delete;
  ~Answerer();

  /// Nothing when the process crashed or took longer than 10 s. Throws std::logic_error when it ended with an exit
  /// code, as after a sanitizer's finding: its words are in the files of ASAN_OPTIONS=log_path=… and
  /// UBSAN_OPTIONS=log_path=….
  std::optional<std::string> ask(std::string_view question);

 private:
  void start();
  int end() noexcept;  ///< the process's status
  [[noreturn]] void serve(int socket);

  std::function<std::string(const std::string&)> answer_;
  int socket_ = -1;
  pid_t process_ = -1;
};

}  // namespace spillway::fuzz
