#include <cstdlib>

#include "ddl/mpi.h"

namespace spillway::ddl {

bool launched_by_mpi() noexcept {
  // Open MPI; PMIx launchers; MPICH and Intel MPI (hydra), srun --mpi=pmi2; MVAPICH.
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_SIZE"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  return false;
}

}  // namespace spillway::ddl
