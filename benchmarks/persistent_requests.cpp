// A comparison of MPI's persistent requests with new ones: which start messages faster. Two ranks swap messages ten
// times in a row with either kind, in turn. The output is rank 0's medians, in microseconds per swap.
//   mpirun -np 2 build/bin/persistent_requests
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

#include "core/median.h"

namespace {

constexpr int kSwaps = 10;

double seconds_of(const auto& swap) {
  MPI_Barrier(MPI_COMM_WORLD);
  const double start = MPI_Wtime();
  for (int i = 0; i < kSwaps; ++i) swap();
  return (MPI_Wtime() - start) / kSwaps;
}

void measure(int rank, int bytes) {
  const int peer = 1 - rank;
  std::vector<char> out(static_cast<size_t>(bytes), 1), in(out.size());
  std::array<MPI_Request, 2> kept;
  MPI_Recv_init(in.data(), bytes, MPI_BYTE, peer, 1, MPI_COMM_WORLD, &kept[0]);
  MPI_Send_init(out.data(), bytes, MPI_BYTE, peer, 1, MPI_COMM_WORLD, &kept[1]);
  const auto persistent = [&] {
    MPI_Startall(2, kept.data());
    MPI_Waitall(2, kept.data(), MPI_STATUSES_IGNORE);
  };
  const auto fresh = [&] {
    std::array<MPI_Request, 2> requests;
    MPI_Irecv(in.data(), bytes, MPI_BYTE, peer, 0, MPI_COMM_WORLD, &requests[0]);
    MPI_Isend(out.data(), bytes, MPI_BYTE, peer, 0, MPI_COMM_WORLD, &requests[1]);
    MPI_Waitall(2, requests.data(), MPI_STATUSES_IGNORE);
  };
  std::vector<double> of_fresh, of_persistent;
  for (int i = 0; i < (bytes > 100'000 ? 300 : 3000); ++i) {
    of_fresh.push_back(seconds_of(fresh));
    of_persistent.push_back(seconds_of(persistent));
  }
  for (MPI_Request& request : kept) MPI_Request_free(&request);
  const double one = spillway::median(of_fresh), other = spillway::median(of_persistent);
  if (rank == 0)
    std::printf("%8d bytes: new %8.2f, persistent %8.2f, ratio %.2f\n", bytes, 1e6 * one, 1e6 * other, other / one);
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size != 2) {
    if (rank == 0) std::fprintf(stderr, "persistent_requests: %d ranks; required: 2\n", size);
    MPI_Finalize();
    return 2;
  }
  for (const int bytes : {8, 1 << 10, 16 << 10, 64 << 10, 1 << 20}) measure(rank, bytes);
  MPI_Finalize();
  return 0;
}
