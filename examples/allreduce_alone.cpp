// The allreduce alone: no LibTorch, no budget, no trainer.
//
// Without mpirun, it simulates two hosts of 4 and 2 ranks as threads:
//
//   $ build/bin/allreduce_alone
//   allreduce of 4.00 MiB over 6 ranks (4+2)
//     level 1, 2 groups of up to 4 ranks: direct; a rank sends 6.00 MiB
//     level 2, 1 group of 2 groups: direct; a rank sends 2.00 MiB, a group 4.00 MiB (at least 4.00 MiB)
//   the average of ranks 0 to 5 is 2.5
//
// Under mpirun, ranks are processes:
//
//   $ mpirun -np 2 build/bin/allreduce_alone
//   allreduce of 4.00 MiB over 2 ranks (2)
//     level 1, 1 group of 2 ranks: direct; a rank sends 4.00 MiB
//   the average of ranks 0 to 1 is 0.5
#include <cstdio>
#include <vector>

#include "ddl/allreduce/allreduce.h"
#include "ddl/comm/mpi.h"
#include "ddl/comm/thread_world.h"

using namespace spillway::ddl;

void average_ranks(Communicator& comm) {
  std::vector<float> gradient(1 << 20, static_cast<float>(comm.rank()));
  Allreduce allreduce(comm);
  allreduce.reduce(gradient, Reduction::average);
  if (comm.rank() == 0)
    std::printf("%sthe average of ranks 0 to %d is %g\n", allreduce.describe(std::ssize(gradient)).c_str(),
                comm.size() - 1, gradient.back());
}

int main() {
  if (launched_by_mpi()) {
    MpiRuntime mpi;
    try {
      average_ranks(*mpi.world());
    } catch (const CommError& error) {
      std::fprintf(stderr, "%s\n", error.what());
      MpiRuntime::abort(4);
    }
  } else {
    ThreadWorld world({0, 0, 0, 0, 1, 1});
    run_ranks(world, average_ranks);
  }
}
