/// A deadline for calls that cannot be told to stop.
#pragma once
#include <chrono>
#include <string>
#include <thread>

namespace spillway::ddl {

/// While it lives, a thread counts down. When `deadline` passes first, it prints `[ddl] no answer to CALL within … s`
/// on stderr and ends the process with code 4, because a blocking call of MPI leaves no other way out. The launcher
/// then ends the other ranks.
class Watchdog {
 public:
  Watchdog(std::string call, std::chrono::milliseconds deadline);

 private:
  std::jthread thread_;
};

}  // namespace spillway::ddl
