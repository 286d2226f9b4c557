/// Ranks as MPI processes. The only door to MPI: everything here also exists in a build without it, and says so.
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

/// False in a build without MPI.
bool built_with_mpi() noexcept;

/// True when an MPI launcher (mpirun, mpiexec, srun with PMI) started this process, by its environment variables;
/// without one a program needs no MPI. False in srun's steps of one task, such as a user's interactive shell.
bool launched_by_mpi() noexcept;

/// Owns MPI in this process, from MPI_Init_thread (level SERIALIZED: one thread at a time) to MPI_Finalize. Create one,
/// early, in main.
class MpiRuntime {
 public:
  /// Starts MPI, which waits for all ranks; ends the process with code 4 when they do not come within `deadline`
  /// (Watchdog). Throws std::runtime_error in a build without MPI, or when MPI cannot start.
  explicit MpiRuntime(std::chrono::milliseconds deadline = CommOptions().deadline);
  /// Finalizes MPI, which waits for all ranks, Busy::kAtMost at most; not when a communicator has died or an exception
  /// is passing through, since a rank that cannot go on would wait for ever: the launcher then ends the others.
  ~MpiRuntime();
  MpiRuntime(const MpiRuntime&) = delete;
  MpiRuntime& operator=(const MpiRuntime&) = delete;

  /// A new communicator over all processes, with messages of its own. Collective; discovers which ranks share a host's
  /// memory. Messages of any size. One that outlives the runtime sends none. After a death of a communicator the
  /// process must end, because MPI may still use the memory of messages that were under way. Throws CommError when not
  /// all ranks come within the deadline, std::runtime_error with MPI's text.
  std::shared_ptr<Communicator> world(CommOptions options = {});
  /// The transport alone, to be wrapped.
  std::unique_ptr<Transport> transport(std::chrono::milliseconds deadline = CommOptions().deadline);

  /// Whether the installed MPI can do the like: it has no 16-bit floats, and no averages.
  static bool reduces(Element element, Reduction reduction) noexcept;
  /// The installed MPI's own allreduce over all processes, to compare with; `in` and `out` are of one size, and the
  /// same memory or apart. Blocking. Throws BadRequest for what it does not reduce, std::runtime_error with MPI's text.
  void allreduce(std::span<const std::byte> in, std::span<std::byte> out, Element element, Reduction reduction);
  /// Its reduce-scatter likewise: rank r gets `counts[r]` elements. `out` is this rank's part, or `in`'s memory: the
  /// part is then at its beginning.
  void reduce_scatter(std::span<const std::byte> in, std::span<std::byte> out, const std::vector<int>& counts,
                      Element element, Reduction reduction);
  /// Its all-gather of any type: rank r contributes `counts[r]` elements. `in` is this rank's part, apart from `out` or
  /// in its place there.
  void all_gather(std::span<const std::byte> in, std::span<std::byte> out, const std::vector<int>& counts,
                  Element element);
  /// Its broadcast of any bytes.
  void broadcast(std::span<std::byte> bytes, int root);
  /// `Open MPI v4.1.4, …`: the first line of what the library says of itself.
  static std::string library();

  /// Ends every process of the launch with `code`, after an error is printed; before MPI has started, this one alone.
  [[noreturn]] static void abort(int code) noexcept;

  struct State;

 private:
  const std::shared_ptr<State> state_;
};

}  // namespace spillway::ddl
