/// The hosts that a batch system has given to this job, from what it leaves in the environment.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/ddlrun/hosts.h"

namespace spillway::ddlrun {

/// `Slurm`, `LSF`, `Grid Engine`, `PBS`: whose job this is, or empty. Their launchers start ranks without ssh.
std::string batch_system(const Environment& environment);

/// Nothing where the batch system is another one. Each throws BadRequest naming the variable, its value and what is
/// allowed; LSF's, Grid Engine's and PBS's also when a file that a variable names cannot be read.
///
/// Slurm: SLURM_JOB_NODELIST; slots from SLURM_TASKS_PER_NODE, else SLURM_NTASKS_PER_NODE, else
/// SLURM_JOB_CPUS_PER_NODE by SLURM_CPUS_PER_TASK.
std::optional<HostList> hosts_of_slurm(const Environment& environment);
/// LSF: the file LSB_DJOB_HOSTFILE, else LSB_MCPU_HOSTS, else LSB_HOSTS.
std::optional<HostList> hosts_of_lsf(const Environment& environment);
/// Grid Engine: the file PE_HOSTFILE.
std::optional<HostList> hosts_of_grid_engine(const Environment& environment);
/// OpenPBS and Torque: the file PBS_NODEFILE.
std::optional<HostList> hosts_of_pbs(const Environment& environment);

/// Throws BadRequest in a job whose hosts the environment does not name (Flux, Cobalt, PBS without its file): to take
/// this host alone would leave the others idle.
void refuse_job_without_hosts(const Environment& environment);

/// Slurm's `gpu[01-03,7],login1`, with any number of brackets in a name. `what` names the text in errors.
std::vector<std::string> expand_nodes(std::string_view text, const std::string& what);
/// Slurm's `4(x2),2`: 4, 4, 2.
std::vector<int64_t> expand_counts(std::string_view text, const std::string& what);

}  // namespace spillway::ddlrun
