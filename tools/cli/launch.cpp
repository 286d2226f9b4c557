#include "tools/cli/launch.h"

#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <system_error>

#include "core/error.h"
#include "core/host/host_topology.h"
#include "ddl/comm/collectives.h"

namespace spillway::tools {
namespace {

/// The variables in which launchers number ranks: Open MPI, PMIx, MPICH and Intel MPI, MVAPICH, srun.
constexpr const char* kRankVariables[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK",
                                          "SLURM_PROCID"};

const char* rank_variable() {
  for (const char* name : kRankVariables)
    if (std::getenv(name) != nullptr) return name;
  return nullptr;
}

std::string read(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Returns the process's parent; 0 where the system does not tell it.
int parent_of(int process) {
  const std::string status = read(str("/proc/", process, "/status"));
  const size_t at = status.find("\nPPid:");
  return at == std::string::npos ? 0 : std::atoi(status.c_str() + at + 6);
}

/// True when `process` was started with the variable. Then it is a rank, or a script around one.
bool has(int process, const std::string& variable) {
  const std::string environment = '\0' + read(str("/proc/", process, "/environ"));
  return environment.find('\0' + variable + '=') != std::string::npos;
}

/// Returns the process that started this host's ranks; 0 where there is none to be seen.
int launcher_process() {
  const char* variable = rank_variable();
  if (variable == nullptr) return 0;
  int process = ::getppid();
  while (process > 0 && has(process, variable)) process = parent_of(process);
  return process;
}

/// True when the process is Slurm's daemon, which runs anywhere and binds the tasks.
bool is_slurms(int process) {
  return read(str("/proc/", process, "/comm")).starts_with("slurmstepd");
}

/// Returns all CPUs that some rank of this host is bound to.
std::vector<int> cpus_of_local_ranks(ddl::Communicator& comm) {
  cpu_set_t own, together;
  CPU_ZERO(&own);
  CPU_ZERO(&together);
  for (int cpu : cpus_of_this_thread()) CPU_SET(cpu, &own);
  std::vector<cpu_set_t> all(comm.size());
  ddl::allgather(comm, std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all)));
  const auto& hosts = comm.hosts();
  for (size_t rank = 0; rank < all.size(); ++rank)
    if (hosts[rank] == hosts[comm.rank()]) CPU_OR(&together, &together, &all[rank]);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &together)) cpus.push_back(cpu);
  return cpus;
}

}  // namespace

int launched_rank() {
  const char* name = rank_variable();
  return name ? std::atoi(std::getenv(name)) : 0;
}

ddl::CommOptions comm_options(double timeout_seconds) {
  ddl::CommOptions options;
  options.deadline = std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds * 1e3));
  return options;
}

std::vector<int> cpus_of_launch(ddl::Communicator& comm) {
  std::vector<int> bound = cpus_of_local_ranks(comm);
  const int launcher = launcher_process();
  if (launcher > 0 && is_slurms(launcher)) return bound;
  try {
    return launcher > 0 ? cpus_of_process(launcher) : std::vector<int>();
  } catch (const std::system_error&) {
    return {};  // the launcher has ended: only the host's limits are known
  }
}

std::vector<int> take_share_of_cores(ddl::Communicator& comm) {
  auto cpus = cpus_of_rank(discover_host(cpus_of_launch(comm)), comm.local_rank(), comm.local_size());
  set_affinity(cpus);
  return cpus;
}

}  // namespace spillway::tools
