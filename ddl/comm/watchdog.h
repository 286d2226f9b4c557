/// A deadline for calls that cannot be told to stop.
#pragma once
#include <chrono>
#include <string>
#include <thread>

namespace spillway::ddl {

/// A thread that counts down while the object lives. When `deadline` passes first, it prints `[ddl] no answer to CALL
/// within … s` on stderr and ends the process with code 4. It does so because a blocking call of MPI leaves no other
/// way out. The launcher then ends the other ranks.
class Watchdog {
 public:
  Watchdog(std::string call, std::chrono::milliseconds deadline);

 private:
  std::jthread thread_;
};

}  // namespace spillway::ddl
