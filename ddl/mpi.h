/// Ranks as MPI processes. The only door to MPI: everything here also exists in a build without it, and says so.
#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "ddl/communicator.h"
#include "ddl/element.h"

namespace spillway::ddl {

/// False in a build without MPI.
bool built_with_mpi() noexcept;

/// True when an MPI launcher (mpirun, mpiexec, srun with PMI) started this process; without one a program needs no MPI
/// at all. Reads the launchers' environment variables, which is the only way they tell.
bool launched_by_mpi() noexcept;

/// Owns MPI in this process, from MPI_Init_thread (level SERIALIZED: one thread at a time) to MPI_Finalize. Create one,
/// early, in main.
class MpiRuntime {
 public:
  /// Throws std::runtime_error in a build without MPI, or when MPI cannot start.
  MpiRuntime();
  /// Finalizes MPI, which waits for all ranks; not when a communicator has died or an exception is passing through,
  /// since a rank that cannot go on would wait for ever: the launcher then ends the others.
  ~MpiRuntime();
  MpiRuntime(const MpiRuntime&) = delete;
  MpiRuntime& operator=(const MpiRuntime&) = delete;

  /// A new communicator over all processes, with messages of its own. Collective; discovers which ranks share a host's
  /// memory. Communicators must end before the runtime does. Messages of any size.
  /// Throws std::runtime_error with MPI's text.
  std::shared_ptr<Communicator> world(CommOptions options = {});
  /// The transport alone, to be wrapped.
  std::unique_ptr<Transport> transport();

  /// Whether the installed MPI can do the like: it has no 16-bit floats, and no averages.
  static bool reduces(Element element, Reduction reduction) noexcept;
  /// The installed MPI's own allreduce over all processes, to compare with; `in` and `out` are of one size, and the
  /// same memory or apart. Blocking. Throws BadRequest for what it does not reduce, std::runtime_error with MPI's text.
  void allreduce(std::span<const std::byte> in, std::span<std::byte> out, Element element, Reduction reduction);
  /// `Open MPI v4.1.4, …`: the first line of what the library says of itself.
  static std::string library();

  /// Ends every process of the launch with `code`: what a tool does after printing a CommError.
  [[noreturn]] static void abort(int code) noexcept;

  struct State;

 private:
  const std::shared_ptr<State> state_;
};

}  // namespace spillway::ddl
