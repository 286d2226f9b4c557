/// The command with which a benchmark launches itself.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "tools/ddlrun/launcher.h"

namespace spillway::tools {

/// Which MPI's launcher it is, as it says itself; nothing when it is none that ddlrun knows, or says nothing.
std::optional<ddlrun::Launcher> ask_launcher(const std::string& command);

/// `words`, the launcher with the arguments it is given, and what this MPI must be told besides so that any number of
/// ranks runs on any number of cores, unbound, also as root: `--oversubscribe --bind-to none --allow-run-as-root` for
/// Open MPI. Intel MPI is told not to bind; MPICH does not. An unknown launcher is left alone.
std::vector<std::string> completed_launcher(std::vector<std::string> words,
                                            const std::optional<ddlrun::Launcher>& launcher, bool is_root);

/// Arguments that force the allreduce `number` of Open MPI's component `tuned`.
std::vector<std::string> forced_allreduce(const ddlrun::Launcher& open_mpi, const std::string& number);

}  // namespace spillway::tools
