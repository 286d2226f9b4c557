/// A notice of long work of one rank's own, for which the other ranks wait.
#pragma once
#include <chrono>
#include <memory>
#include <thread>

#include "ddl/comm/communicator.h"

namespace spillway::ddl {

/// A scope in which the other ranks wait for this one beyond the deadline. While it lives, a thread tells them that
/// this rank is alive and will come, eight times within each deadline:
///
///     {
///       const ddl::Busy busy(comm->communicator.get());
///       write_checkpoint(…);
///     }
///
/// A rank that dies or is stopped meanwhile is given up as ever, a deadline after its last notice. Collectives may be
/// called meanwhile, and several Busy objects may live at a time. Work that is shorter than an eighth of the deadline
/// sends nothing.
class Busy {
 public:
  /// The longest time for which other ranks are asked to wait. It is limited because file systems may hang for ever.
  static constexpr std::chrono::hours kAtMost{1};

  /// Starts the thread. `comm` is nullptr when there are no other ranks; it may end before this object.
  explicit Busy(const Communicator* comm, std::chrono::milliseconds at_most = kAtMost);

 private:
  std::jthread thread_;
};

}  // namespace spillway::ddl
