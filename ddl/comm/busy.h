/// Long work of one rank's own, for which the others are to wait.
#pragma once
#include <chrono>
#include <memory>
#include <thread>

#include "ddl/comm/communicator.h"

namespace spillway::ddl {

/// While it lives, a thread tells the other ranks, eight times within each deadline, that this one is alive and will
/// come, so that they wait beyond the deadline:
///
///     {
///       const ddl::Busy busy(comm->communicator.get());
///       write_checkpoint(…);
///     }
///
/// A rank that dies or is stopped meanwhile is given up as ever, a deadline after its last word. Collectives may be
/// called, and several may live at a time. Work that is shorter than an eighth of the deadline sends nothing.
class Busy {
 public:
  /// The longest time for which others are asked to wait: file systems may hang for ever.
  static constexpr std::chrono::hours kAtMost{1};

  /// `comm`: nullptr where there are no other ranks; it may end first.
  explicit Busy(const Communicator* comm, std::chrono::milliseconds at_most = kAtMost);

 private:
  std::jthread thread_;
};

}  // namespace spillway::ddl
