/// Ways to carry out collectives of vectors that are in host memory.
#pragma once
#include <memory>

#include "benchmarks/allreduce/variant.h"
#include "ddl/allreduce/cost_model.h"
#include "ddl/comm/mpi.h"

namespace spillway::tools {

/// Returns vectors on the CPU. An allreduce has the ways `levels`, `ring` (flat, in the order of ranks), `leader`, and
/// `mpi` where MPI has type and operation. `levels` is the plan that the cost model chooses; with `keep_order` it is
/// one that keeps the order of sums. A reduce-scatter and an all-gather, the halves of an allreduce, have `levels` and
/// `mpi`. A broadcast has `tree` (binomial, over ranks) and `mpi`. `levels` of the halves, `tree` and MPI's broadcast
/// cannot work out of place: they copy the input first. All arguments must outlive the result.
std::unique_ptr<Vectors> vectors_on_host(ddl::MpiRuntime& mpi, ddl::Communicator& comm, const ddl::Costs& costs,
                                         const Problem& problem, bool keep_order);

}  // namespace spillway::tools
