/// What the ranks of one launch measure of allreduces.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ddl/mpi.h"

namespace spillway::tools {

struct TrialOptions {
  std::vector<int64_t> sizes;    ///< bytes, of whole elements
  std::string type = "float32";  ///< of the elements, as element_named() takes it
  std::string op = "sum";        ///< as reduction_named() takes it
  std::string levels = "hosts";  ///< as --levels takes them
  std::string device = "cpu";    ///< cpu; cuda, the card of each rank's place on its host; cuda:N
  int repeats = 10;
  bool keep_order = false;  ///< only plans that do
  bool mpi_only = false;    ///< the installed MPI's allreduce alone: for launches that force its algorithm
  double comm_timeout_seconds = 60;
};

/// Runs every way of every size in turn, over all processes. Rank 0 gets what was measured, the others null:
///   {world_size levels mpi device cards type op repeats costs: {…} rows: [{bytes count algorithm seconds
///   in_place_seconds wrong in_place_wrong bound_seconds predicted_seconds plan chunk_bytes explanation by_level:
///   [{algorithm sent_by_rank_bytes sent_by_group_bytes least_bytes bound_seconds predicted_seconds
///   waited_seconds}]}]}
/// `seconds` are the slowest rank's, median of the repeats; `wrong` counts elements of all results, out of place and in
/// place, on the rank that has the most. On the CPU: `levels` (the plan that the cost model chooses; the last five
/// keys are its own), `ring` (flat, in the order of ranks), `leader`, and `mpi` where it has the type and the
/// operation. On cards those of vectors_on_card(): `cards` says how they talk (on the CPU null), `bound_seconds` is
/// null, and `costs` are those of the way through the host. Throws CommError; DeviceError without a card.
nlohmann::json run_trial(ddl::MpiRuntime& mpi, const TrialOptions& options);

}  // namespace spillway::tools
