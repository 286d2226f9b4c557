// Bandwidths, shares and spreads, which follow from the times that a benchmark of collectives found.
#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "benchmarks/allreduce/problem.h"
#include "benchmarks/allreduce/table.h"
#include "core/median.h"

namespace spillway::tools {
namespace {

using nlohmann::json;

double bus_factor(const json& result, const json& row) {
  return bus_factor(parse_collective(row.value("collective", "allreduce")), result["world_size"].get<int>());
}

/// Returns a row's model error; null where nothing is predicted to take any time (a rank alone).
json row_error(const json& row) {
  std::vector<double> errors;
  for (const json& launch : row.contains("by_launch") ? row["by_launch"] : json::array({row})) {
    const double predicted = launch["predicted_seconds"];
    if (predicted <= 0) return nullptr;
    for (const char* key : {"seconds", "in_place_seconds"}) {
      const double measured = launch[key];
      errors.push_back(std::fabs(predicted - measured) / measured);
    }
  }
  return median(errors);
}

json model_error(const json& rows) {
  std::vector<double> errors;
  double worst = -1;
  int64_t worst_bytes = 0;
  for (const json& row : rows) {
    if (!row.contains("model_error") || row["model_error"].is_null()) continue;
    errors.push_back(row["model_error"]);
    if (errors.back() <= worst) continue;
    worst = errors.back();
    worst_bytes = row["bytes"];
  }
  if (errors.empty()) return nullptr;
  return {{"median", median(errors)}, {"worst", worst}, {"worst_bytes", worst_bytes}, {"sizes", errors.size()}};
}

/// Returns the least value of `sorted` such that at least `share` of the values are not above it.
double percentile(const std::vector<double>& sorted, double share) {
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(sorted.size())));
  return sorted[std::max<size_t>(rank, 1) - 1];
}

json spread_of(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  return {{"min_seconds", seconds.front()},
          {"p50_seconds", percentile(seconds, 0.50)},
          {"p95_seconds", percentile(seconds, 0.95)},
          {"p99_seconds", percentile(seconds, 0.99)},
          {"max_seconds", seconds.back()}};
}

/// Adds bandwidths to an object that has `seconds` and `in_place_seconds`.
void add_bandwidths(json& times, double bytes, double factor) {
  for (const std::string place : {"", "in_place_"}) {
    const double bandwidth = bytes / times[place + "seconds"].get<double>() / 1e9;
    times[place + "algbw"] = bandwidth;
    times[place + "busbw"] = bandwidth * factor;
  }
}

bool is_back_to_back(const json& row) {
  return row.contains("back_to_back") && !row["back_to_back"].is_null();
}

json average_bus_bandwidths(const json& rows) {
  std::map<std::string, std::vector<double>> all;
  for (const json& row : rows)
    for (const char* key : {"busbw", "in_place_busbw"})
      all[row["algorithm"]].push_back((is_back_to_back(row) ? row["back_to_back"] : row)[key]);
  json averages = json::object();
  for (const auto& [algorithm, bandwidths] : all) {
    double sum = 0;
    for (const double bandwidth : bandwidths) sum += bandwidth;
    averages[algorithm] = sum / static_cast<double>(bandwidths.size());
  }
  return averages;
}

/// Returns the key that all rows of one problem have alike.
auto problem_of(const json& row) {
  return std::tuple(row.value("collective", ""), row.value("type", ""),
                    row.contains("op") && row["op"].is_string() ? row["op"].get<std::string>() : "",
                    row["bytes"].get<int64_t>());
}

}  // namespace

void complete(json& result) {
  std::map<decltype(problem_of(json())), double> mpi;
  int64_t wrong = 0;
  for (const json& row : result["rows"]) {
    if (row["algorithm"] == "mpi") mpi[problem_of(row)] = row["seconds"];
    wrong += row.value("wrong", int64_t{0});
  }
  for (json& row : result["rows"]) {
    const double bytes = row["bytes"], factor = bus_factor(result, row);
    add_bandwidths(row, bytes, factor);
    if (is_back_to_back(row)) add_bandwidths(row["back_to_back"], bytes, factor);
    for (const std::string place : {"", "in_place_"})
      if (row.contains(place + "call_seconds")) row[place + "spread"] = spread_of(row[place + "call_seconds"]);
    row["percent_of_bound"] = json(nullptr);
    if (!row["bound_seconds"].is_null())
      row["percent_of_bound"] = row["bound_seconds"].get<double>() / row["seconds"].get<double>() * 100;
    const auto known = mpi.find(problem_of(row));
    row["mpi_seconds"] = known == mpi.end() ? json(nullptr) : json(known->second);
    if (row.contains("predicted_seconds")) row["model_error"] = row_error(row);
  }
  result["model_error"] = model_error(result["rows"]);
  result["out_of_bounds"] = wrong;
  result["avg_bus_bandwidth"] = average_bus_bandwidths(result["rows"]);
}

}  // namespace spillway::tools
