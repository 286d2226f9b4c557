/// Child processes that run other programs, whose output is read.
#pragma once
#include <chrono>
#include <string>
#include <vector>

namespace spillway::ddlrun {

struct Outcome {
  int exit_code = -1;  ///< 128 plus the signal's number when a signal ended the program
  bool timed_out = false;
  std::string out;
  std::string err;
};

/// Runs `command` without input until it ends or `deadline` has passed; its first word is searched for in PATH. After
/// the deadline it is asked to end (SIGTERM), and 2 s later forced to (SIGKILL). It is also asked to end when this
/// process dies. Throws BadRequest when there is no such program, std::system_error when the system cannot start it.
Outcome run(const std::vector<std::string>& command, std::chrono::milliseconds deadline);

/// Runs many commands, up to 64 at a time, with one `deadline` for all of them together. Commands whose turn does not
/// come before the deadline count as timed out and are not run.
std::vector<Outcome> run_all(const std::vector<std::vector<std::string>>& commands, std::chrono::milliseconds deadline);

/// Replaces this process by `command`. Throws as run() does.
[[noreturn]] void become(const std::vector<std::string>& command);

/// Runs `command`, Open MPI's mpirun with `spillway train`, until it ends, and returns its exit code; 128 plus the
/// signal's number when a signal ended it. The first SIGINT, SIGTERM or SIGHUP reaches the ranks as SIGUSR2, which asks
/// them to save their state and to end with 130, and which mpirun passes on and waits for. It would kill them a second
/// after any other. SIGUSR2 is sent again each second, because mpirun loses it while it starts the ranks. A further
/// SIGINT, SIGTERM or SIGHUP ends mpirun. SIGUSR1 and SIGUSR2 are passed on. `command` has no input and a process group
/// of its own, so that a terminal's Ctrl-C does not reach it. It is asked to end when this process dies. Throws as
/// run() does.
int supervise(const std::vector<std::string>& command);

/// Returns the last line that is not blank, without blanks at its ends.
std::string last_line(const std::string& text);

}  // namespace spillway::ddlrun
