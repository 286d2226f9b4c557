/// The command with which a benchmark launches itself.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "tools/ddlrun/launcher.h"

namespace spillway::tools {

/// Returns the MPI's launcher that `command` says it is; nothing when ddlrun does not know it, or it says nothing.
std::optional<ddlrun::Launcher> ask_launcher(const std::string& command);

/// Returns `words`, the launcher with the arguments it is given, and the further arguments that this MPI needs. With
/// them any number of ranks runs on any number of cores, unbound, also as root: `--oversubscribe --bind-to none
/// --allow-run-as-root` for Open MPI. Intel MPI is told not to bind; MPICH does not. An unknown launcher is left alone.
std::vector<std::string> completed_launcher(std::vector<std::string> words,
                                            const std::optional<ddlrun::Launcher>& launcher, bool is_root);

/// Returns the arguments that force the allreduce `number` of Open MPI's component `tuned`.
std::vector<std::string> forced_allreduce(const ddlrun::Launcher& open_mpi, const std::string& number);

}  // namespace spillway::tools
