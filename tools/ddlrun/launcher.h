/// The command that starts the ranks: which MPI's it is, and what it wants to be told.
#pragma once
#include <string>
#include <vector>

#include "tools/ddlrun/plan.h"

namespace spillway::ddlrun {

enum class Mpi { open_mpi, mpich, intel };

struct Launcher {
  std::string command = "mpirun";
  Mpi mpi = Mpi::open_mpi;
  int major = 4;             ///< of Open MPI's version
  std::string version = {};  ///< for people
};

/// By what `command --version` printed. Throws BadRequest naming the launcher, unless it is Open MPI's (4 or newer),
/// MPICH's or Intel MPI's.
Launcher parse_version(const std::string& command, const std::string& text);

/// The same without running anything, by the file's name, where its links lead, and what lies beside it; `path` is
/// where programs are searched for. What cannot be told is taken for Open MPI 4, and `version` says so.
Launcher guess_launcher(const std::string& command, const std::string& path);

struct LaunchOptions {
  std::vector<std::string> agent = {};     ///< in place of ssh, with its arguments
  std::vector<std::string> mpi_args = {};  ///< for the launcher, as they are
  std::vector<std::string> exports = {};   ///< variables of all ranks, NAME or NAME=VALUE
  bool allow_run_as_root = false;
};

/// The whole command line. `batch_system` as batch_system() says: an agent there takes precedence over its own launch.
/// Throws BadRequest for what this MPI's launcher cannot do.
std::vector<std::string> launch_command(const Launcher& launcher, const LaunchOptions& options, const Plan& plan,
                                        const std::string& batch_system, const std::vector<std::string>& program);

/// The options with `***` for the values of variables whose names contain TOKEN, SECRET, PASSW, KEY or CREDENTIAL: for
/// a command that is shown and not run.
LaunchOptions without_secrets(LaunchOptions options);

/// PROGRAM and its arguments, with `--levels` when they are declared. Throws BadRequest unless the program is `spillway
/// train` or `spillway bench allreduce` without --levels of its own: no other reads them.
std::vector<std::string> with_levels(std::vector<std::string> program, const std::string& levels);

/// Throws BadRequest unless `text`, of -x, is NAME=VALUE, or the NAME of a variable that is set.
void check_export(const std::string& text, const Environment& environment);

}  // namespace spillway::ddlrun
