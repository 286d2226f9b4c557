/// Other programs, run and listened to.
#pragma once
#include <chrono>
#include <string>
#include <vector>

namespace spillway::ddlrun {

struct Outcome {
  int exit_code = -1;  ///< 128 and the signal's number when a signal ended it
  bool timed_out = false;
  std::string out;
  std::string err;
};

/// Runs `command` (its first word is searched for in PATH), without input, until it ends or `deadline` has passed; it
/// is then asked to end, and 2 s later made to. Should this process die, it is asked to end too. Throws BadRequest when
/// there is no such program, std::system_error when the system cannot start it.
Outcome run(const std::vector<std::string>& command, std::chrono::milliseconds deadline);

/// Runs many, up to 64 at a time; `deadline` is theirs together. Those whose turn does not come before it count
/// as timed out and are not run.
std::vector<Outcome> run_all(const std::vector<std::vector<std::string>>& commands, std::chrono::milliseconds deadline);

/// Becomes `command`. Throws as `run` does.
[[noreturn]] void become(const std::vector<std::string>& command);

/// The last line that is not blank, without blanks at its ends.
std::string last_line(const std::string& text);

}  // namespace spillway::ddlrun
