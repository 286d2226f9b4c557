/// The command that starts the ranks: the MPI that it belongs to, and the arguments that it needs.
#pragma once
#include <string>
#include <vector>

#include "tools/ddlrun/plan.h"

namespace spillway::ddlrun {

enum class Mpi { open_mpi, mpich, intel };

struct Launcher {
  std::string command = "mpirun";
  Mpi mpi = Mpi::open_mpi;
  int major = 4;             ///< major version of Open MPI
  std::string version = {};  ///< text for the user
};

/// Returns the launcher that `text`, the output of `command --version`, describes. Throws BadRequest naming the
/// launcher, unless it is Open MPI's (4 or newer), MPICH's or Intel MPI's.
Launcher parse_version(const std::string& command, const std::string& text);

/// Guesses the launcher without running it, by its file's name, the target of links, and the files beside it. `path` is
/// the list of folders where programs are searched for. An unknown launcher is taken for Open MPI 4's, and `version`
/// says so.
Launcher guess_launcher(const std::string& command, const std::string& path);

struct LaunchOptions {
  std::vector<std::string> agent = {};     ///< program in place of ssh, with its arguments
  std::vector<std::string> mpi_args = {};  ///< arguments that the launcher gets unchanged
  std::vector<std::string> exports = {};   ///< variables of all ranks, NAME or NAME=VALUE
  bool allow_run_as_root = false;
};

/// Returns the whole command line. `batch_system` is the result of batch_system(). An agent takes precedence over that
/// system's own launch. Throws BadRequest for anything that this MPI's launcher cannot do.
std::vector<std::string> launch_command(const Launcher& launcher, const LaunchOptions& options, const Plan& plan,
                                        const std::string& batch_system, const std::vector<std::string>& program);

/// Returns the options with `***` for the values of variables whose names contain TOKEN, SECRET, PASSW, KEY or
/// CREDENTIAL. The result is for a command that is shown and not run.
LaunchOptions without_secrets(LaunchOptions options);

/// Returns PROGRAM and its arguments, with `--levels` when levels are declared. It then throws BadRequest unless the
/// program is `spillway train` or `spillway bench allreduce`, because no other program reads them. The arguments must
/// have no --levels of their own.
std::vector<std::string> with_levels(std::vector<std::string> program, const std::string& levels);

/// True when the ranks are `spillway train` under Open MPI, which end by themselves on SIGUSR2. Other MPIs' launchers
/// pass Ctrl-C on to the ranks; Open MPI's kills them.
bool ends_on_request(const Launcher& launcher, const std::vector<std::string>& program);

/// Throws BadRequest unless `text`, an argument of -x, is NAME=VALUE, or the NAME of a variable that is set.
void check_export(const std::string& text, const Environment& environment);

}  // namespace spillway::ddlrun
