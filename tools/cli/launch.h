/// A rank's knowledge of its launch: its number before MPI has started, and the CPUs that the job may use on its host.
#pragma once
#include <string>
#include <vector>

#include "ddl/comm/communicator.h"

namespace spillway::tools {

/// Returns this process's rank as its launcher tells it in the environment; 0 where the launcher does not.
int launched_rank();

/// Returns the options of a communicator whose deadline is `--comm-timeout`, in seconds.
ddl::CommOptions comm_options(double timeout_seconds);

/// Returns the CPUs of this host that the launch may use. They are those of the launcher's own process, because it has
/// the job's limits and none of the bindings that it gives to ranks. Slurm's daemon has neither these limits nor the
/// bindings, so under srun the result is all CPUs that the host's ranks are bound to. Collective. Throws CommError.
std::vector<int> cpus_of_launch(ddl::Communicator& comm);

/// Lets this rank run on its share of the cores that the launch may use on its host. This replaces any binding by the
/// launcher. Returns the cores' CPUs. Collective. Throws CommError.
std::vector<int> take_share_of_cores(ddl::Communicator& comm);

}  // namespace spillway::tools
