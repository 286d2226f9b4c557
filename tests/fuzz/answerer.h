/// A process that answers one question after another, for libraries that crash on some of them.
#pragma once
#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace spillway::fuzz {

/// A process that answers questions until it crashes, and is then replaced by a new one. in_child() starts a process
/// for each question instead, which takes a millisecond under sanitizers.
class Answerer {
 public:
  /// Makes an Answerer whose process runs `answer`. ask() throws the errors of `answer` as BadRequest.
  explicit Answerer(std::function<std::string(const std::string&)> answer) : answer_(std::move(answer)) {}
  Answerer(const Answerer&) = delete;
  Answerer& operator=(const Answerer&) = delete;
  ~Answerer();

  /// Returns the answer, or nothing when the process crashed or took longer than 10 s. Throws std::logic_error when the
  /// process ended with an exit code, as after a sanitizer's finding. The sanitizer's report is in the files of
  /// ASAN_OPTIONS=log_path=… and UBSAN_OPTIONS=log_path=….
  std::optional<std::string> ask(std::string_view question);

 private:
  void start();
  int end() noexcept;  ///< returns the process's status
  [[noreturn]] void serve(int socket);

  std::function<std::string(const std::string&)> answer_;
  int socket_ = -1;
  pid_t process_ = -1;
};

}  // namespace spillway::fuzz
