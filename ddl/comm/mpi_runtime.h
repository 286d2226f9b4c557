/// The rules of calls to MPI: one thread at a time, every error thrown, and a deadline for those that block.
#pragma once
#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ddl/comm/mpi.h"

namespace spillway::ddl {

/// The maximum bytes of one MPI message, because MPI counts in int. A larger message goes as several, which arrive in
/// order.
inline constexpr size_t kPieceBytes = size_t{1} << 30;

/// State shared with the communicators, which say when MPI is no longer fit to be finalized.
struct MpiRuntime::State {
  /// A communicator that MPI is making. MPI writes there, and cannot be told to stop.
  struct Duplicate;
  /// Communicators may outlive the runtime, and the program's own MPI, without messages.
  bool is_finalized() const;

  std::mutex taking_turns;  ///< MPI_THREAD_SERIALIZED: one thread at a time
  std::atomic<bool> broken = false;
  bool is_ours = true;  ///< false: the program had started MPI, and ends it
  bool finalized = false;
  std::vector<std::shared_ptr<Duplicate>> unfinished;  ///< duplicates that no thread waits for any longer
  int exceptions_at_start = std::uncaught_exceptions();
};

/// A thread's turn to call MPI.
using MpiTurn = std::lock_guard<std::mutex>;

/// Throws std::runtime_error with MPI's text where `code` is an error of `call`.
void check_mpi(int code, const char* call);

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
