/// The hosts that a batch system has given to this job, read from the variables that it sets in the environment.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/ddlrun/hosts.h"

namespace spillway::ddlrun {

/// Returns the batch system whose job this is: `Slurm`, `LSF`, `Grid Engine` or `PBS`; empty outside a job. These
/// systems start ranks by launchers of their own, without ssh.
std::string batch_system(const Environment& environment);

/// Returns the hosts of a Slurm job; nothing under another batch system. Each hosts_of_…() function does so for its own
/// system. Each throws BadRequest naming the variable, its value and the allowed values. The functions for LSF, Grid
/// Engine and PBS also throw it when a file that a variable names cannot be read.
///
/// The hosts are those of SLURM_JOB_NODELIST. Their slots come from SLURM_TASKS_PER_NODE, else SLURM_NTASKS_PER_NODE,
/// else SLURM_JOB_CPUS_PER_NODE divided by SLURM_CPUS_PER_TASK.
std::optional<HostList> hosts_of_slurm(const Environment& environment);
/// Returns the hosts of an LSF job, from the file LSB_DJOB_HOSTFILE, else LSB_MCPU_HOSTS, else LSB_HOSTS.
std::optional<HostList> hosts_of_lsf(const Environment& environment);
/// Returns the hosts of a Grid Engine job, from the file PE_HOSTFILE.
std::optional<HostList> hosts_of_grid_engine(const Environment& environment);
/// Returns the hosts of an OpenPBS or Torque job, from the file PBS_NODEFILE.
std::optional<HostList> hosts_of_pbs(const Environment& environment);

/// Throws BadRequest in a job whose hosts the environment does not name (Flux, Cobalt, PBS without its file). Such a
/// job is refused because to take this host alone would leave the other hosts idle.
void refuse_job_without_hosts(const Environment& environment);

/// Expands Slurm's `gpu[01-03,7],login1`, with any number of brackets in a name. The second argument names the text in
/// errors.
std::vector<std::string> expand_nodes(std::string_view text, const std::string& what);
/// Expands Slurm's `4(x2),2` to 4, 4, 2. The second argument names the text in errors.
std::vector<int64_t> expand_counts(std::string_view text, const std::string& what);

}  // namespace spillway::ddlrun
