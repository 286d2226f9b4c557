/// Timing of collectives: each call alone, and calls back to back.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "benchmarks/allreduce/inputs.h"
#include "benchmarks/allreduce/variant.h"
#include "ddl/comm/communicator.h"

namespace spillway::tools {

/// The way to make one number of the ranks' times.
enum class Average { rank0, mean, minimum, maximum };

/// Returns the average with the name `rank0`, `mean`, `min` or `max`. Throws BadRequest naming `name` and the allowed
/// names.
Average parse_average(std::string_view name);

struct TimingOptions {
  int warmup = 2;      ///< calls of each kind that do not count
  int repeats = 10;    ///< calls alone, each after a barrier
  int iterations = 0;  ///< calls back to back between two readings of the clock, as nccl-tests takes them; 0: none
  std::string average = "max";                ///< average over the ranks, of each call alone
  std::string back_to_back_average = "mean";  ///< average over the ranks, of calls back to back
};

/// Measures the ways in turn, so that noise is noise for all of them. Returns a row for each:
///   {algorithm seconds in_place_seconds call_seconds: […] in_place_call_seconds: […] wrong in_place_wrong
///   back_to_back: null or {iterations seconds in_place_seconds} …Way::more}
/// `seconds` are the median of `call_seconds`. `wrong` counts the wrong elements of all checked results, out of place
/// and in place, on the rank that has the most. Every call alone is checked. Of calls back to back, only the last one
/// out of place is checked. Collective. Throws CommError.
std::vector<nlohmann::json> measure(ddl::Communicator& comm, Vectors& vectors, std::vector<Way> ways,
                                    const Expected& expected, const TimingOptions& options);

}  // namespace spillway::tools
