/// The ranks' side of preflight: the inspection that runs on the hosts before PROGRAM does.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>

namespace spillway::ddlrun {

struct InspectOptions {
  std::string program;  ///< the program to be launched
  std::string levels;   ///< declared levels, or empty
  int64_t ranks = 0;    ///< number of ranks that were launched
  std::chrono::milliseconds deadline{60'000};
};

/// The mark with which rank 0's line begins; JSON follows.
inline constexpr const char* kReport = "ddlrun-report ";

/// Measures the levels, looks at each host once, and lets rank 0 print the report: {world_size, hosts (of each rank),
/// records: [{rank, record}], levels, costs: [{latency_seconds, bytes_per_second}]}. A rank that sees another number of
/// ranks reports only that number and its MPI. Runs under mpirun. Throws CommError, std::runtime_error.
void inspect(const InspectOptions& options);

}  // namespace spillway::ddlrun
