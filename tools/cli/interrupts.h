/// Handling of signals by commands that end in good order.
#pragma once
#include <csignal>

namespace spillway::tools {

/// A guard during whose life the first SIGINT or SIGTERM only makes interrupted() true; a second one ends the process.
/// Afterwards signals do the same as before it, because a rank that has failed must end when its launcher says so. Only
/// one guard may live at a time.
class InterruptsNoted {
 public:
  InterruptsNoted();
  ~InterruptsNoted();
  InterruptsNoted(const InterruptsNoted&) = delete;
  InterruptsNoted& operator=(const InterruptsNoted&) = delete;

 private:
  struct sigaction interrupt_before_ {};
  struct sigaction end_before_ {};
};

bool interrupted() noexcept;

/// Makes a file that may not grow an error with a name, and not the end of the process. Programs that this process
/// starts or becomes have the signal's default action.
void report_file_size_limits();

}  // namespace spillway::tools
