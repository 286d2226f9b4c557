/// Failures: an error as an exit code and a line, and the message to the other ranks.
#pragma once
#include <exception>
#include <string>
#include <utility>

#include "core/program.h"
#include "ddl/torch/comm.h"

namespace spillway::runtime {

/// The reason why a program ends, and its exit code.
struct Failure {
  ExitCode code = kFailure;
  std::string text;         ///< one line
  bool of_another = false;  ///< another rank failed first and reports the reason itself
};

/// Returns the exit code and the first line of an error. A rank that learned of another rank's failure ends with that
/// rank's code.
Failure failure_of(const std::exception& error);

/// Tells the other ranks why this one cannot go on. `comm` may be empty.
void tell_other_ranks(const ddl::Comm& comm, const std::exception& error) noexcept;

/// Runs `body`. When it throws, the other ranks are told why before anything is unwound, because unwinding may take
/// longer than they wait: pages are read back from disk, or a decomposition is finished. Throws the error of `body`.
template <class Body>
decltype(auto) heard_by_all(const ddl::Comm& comm, Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const std::exception& error) {
    tell_other_ranks(comm, error);
    throw;
  }
}

}  // namespace spillway::runtime
