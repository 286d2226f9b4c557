#include <cstdlib>
#include <string_view>

#include "ddl/comm/mpi.h"

namespace spillway::ddl {
namespace {

bool is_one(const char* name) noexcept {
  const char* value = std::getenv(name);
  return value != nullptr && std::string_view(value) == "1";
}

}  // namespace

bool launched_by_mpi() noexcept {
  // Open MPI; MVAPICH.
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  // MPICH and Intel MPI (hydra), srun --mpi=pmi2. An interactive step of one task, such as `srun --pty bash`, looks the
  // same to a program that runs in it, and needs no MPI.
  if (std::getenv("PMI_RANK") != nullptr) return !is_one("PMI_SIZE");
  // PMIx launchers, which do not tell their size; Slurm does.
  const char* space = std::getenv("PMIX_NAMESPACE");
  const bool by_slurm = space != nullptr && std::string_view(space).starts_with("slurm.");
  return std::getenv("PMIX_RANK") != nullptr && !(by_slurm && is_one("SLURM_STEP_NUM_TASKS"));
}

}  // namespace spillway::ddl
