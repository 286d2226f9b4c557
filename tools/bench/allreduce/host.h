/// Ways to carry out collectives of vectors that are in host memory.
#pragma once
#include <memory>

#include "ddl/allreduce/cost_model.h"
#include "ddl/comm/mpi.h"
#include "tools/bench/allreduce/variant.h"

namespace spillway::tools {

/// Vectors on the CPU. Ways of an allreduce: `levels` (the plan that the cost model chooses; with `keep_order` one that
/// keeps the order of sums), `ring` (flat, in the order of ranks), `leader`, and `mpi` where MPI has type and
/// operation. Of its halves: `levels` and `mpi`. Of a broadcast: `tree` (binomial, over ranks) and `mpi`.
/// `levels` of the halves, `tree` and MPI's broadcast know no out of place: they copy the input first. All arguments
/// must outlive it.
std::unique_ptr<Vectors> vectors_on_host(ddl::MpiRuntime& mpi, ddl::Communicator& comm, const ddl::Costs& costs,
                                         const Problem& problem, bool keep_order);

}  // namespace spillway::tools
