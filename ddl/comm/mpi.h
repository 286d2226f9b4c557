/// Ranks as MPI processes. No other header reaches MPI. Everything here also exists in a build without MPI, and says so
/// there.
#pragma once
#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ddl/comm/communicator.h"
#include "ddl/comm/element.h"

namespace spillway::ddl {

/// True when this build has MPI.
bool built_with_mpi() noexcept;

/// True when an MPI launcher (mpirun, mpiexec, srun with PMI) started this process, according to its environment
/// variables. Without a launcher a program needs no MPI. False in srun's steps of one task, such as a user's
/// interactive shell.
bool launched_by_mpi() noexcept;

/// The owner of MPI in this process, from MPI_Init_thread (level SERIALIZED: one thread at a time) to MPI_Finalize.
/// Create one, early, in main. Where the program has started MPI itself, as mpi4py does, it only uses that MPI.
class MpiRuntime {
 public:
  /// Starts MPI, which waits for all ranks. Ends the process with code 4 when they do not come within `deadline`
  /// (Watchdog). Throws std::runtime_error in a build without MPI, when MPI cannot start, or when the program started
  /// it with a level below MULTIPLE.
  explicit MpiRuntime(std::chrono::milliseconds deadline = CommOptions().deadline);
  /// Finalizes MPI, which waits for all ranks, Busy::kAtMost at most. Does not finalize MPI when a communicator has
  /// died or an exception is passing through. A rank that cannot go on would wait for ever; instead the launcher ends
  /// the other ranks.
  ~MpiRuntime();
  MpiRuntime(const MpiRuntime&) = delete;
  MpiRuntime& operator=(const MpiRuntime&) = delete;

  /// Makes a new communicator over all processes, with messages of its own, of any size. Collective. Discovers which
  /// ranks share a host's memory. A communicator that outlives the runtime sends no messages. After a death of a
  /// communicator the process must end, because MPI may still use the memory of messages that were under way. Throws
  /// CommError when not all ranks come within the deadline, std::runtime_error with MPI's text.
  std::shared_ptr<Communicator> world(CommOptions options = {});
  /// Makes the transport alone, to be wrapped.
  std::unique_ptr<Transport> transport(std::chrono::milliseconds deadline = CommOptions().deadline);

  /// True when the installed MPI can reduce that type in that way. It has no 16-bit floats, and no averages.
  static bool reduces(Element element, Reduction reduction) noexcept;
  /// Calls the installed MPI's own allreduce over all processes, to compare with. `in` and `out` are of one size, and
  /// are the same memory or do not overlap. Blocking. Throws BadRequest for a reduction that MPI lacks,
  /// std::runtime_error with MPI's text.
  void allreduce(std::span<const std::byte> in, std::span<std::byte> out, Element element, Reduction reduction);
  /// Calls the installed MPI's own reduce-scatter: rank r gets `counts[r]` elements. `out` is this rank's part, or the
  /// memory of `in`; then the part is at its beginning.
  void reduce_scatter(std::span<const std::byte> in, std::span<std::byte> out, const std::vector<int>& counts,
                      Element element, Reduction reduction);
  /// Calls the installed MPI's own all-gather, of any type: rank r contributes `counts[r]` elements. `in` is this
  /// rank's part, apart from `out` or in its place there.
  void all_gather(std::span<const std::byte> in, std::span<std::byte> out, const std::vector<int>& counts,
                  Element element);
  /// Calls the installed MPI's own broadcast, of any bytes.
  void broadcast(std::span<std::byte> bytes, int root);
  /// Returns the first line of the library's own description: `Open MPI v4.1.4, …`.
  static std::string library();

  /// Ends every process of the launch with `code`, after an error is printed. Before MPI has started, ends this process
  /// alone.
  [[noreturn]] static void abort(int code) noexcept;

  struct State;

 private:
  const std::shared_ptr<State> state_;
};

}  // namespace spillway::ddl
