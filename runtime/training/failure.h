/// Turns an error into an exit code and a line, and tells the other ranks.
#pragma once
#include <exception>
#include <string>
#include <utility>

#include "core/exit_code.h"
#include "ddl/torch/comm.h"

namespace spillway {

/// Why a program ends, and with which code.
struct Failure {
  ExitCode code = kFailure;
  std::string text;         ///< one line
  bool of_another = false;  ///< another rank gave up and has its own words for why
};

/// The code and the first line of what was thrown. Who heard of another rank's failure ends with that rank's code.
Failure failure_of(const std::exception& error);

/// Tells the other ranks why this one cannot go on. `comm` may be empty.
void tell_other_ranks(const ddl::Comm& comm, const std::exception& error) noexcept;

/// Runs `body`. When it throws, the other ranks hear why before anything is unwound: what a run closes (pages that come
/// home from disk, a decomposition that is being finished) may take longer than they wait. Throws what `body` throws.
template <class Body>
decltype(auto) heard_by_all(const ddl::Comm& comm, Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const std::exception& error) {
    tell_other_ranks(comm, error);
    throw;
  }
}

}  // namespace spillway
