#include "tools/allreduce_table.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/bytes.h"
#include "core/error.h"
#include "tools/worker.h"

namespace spillway::tools {
namespace {

using nlohmann::json;

double bus_factor(const json& result) {
  const double ranks = result["world_size"];
  return 2 * (ranks - 1) / ranks;
}

/// Null where nothing is predicted to take any time (a rank alone).
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

/// nccl-tests' names of types and operations.
std::string nccl_name(const std::string& name) {
  static const std::map<std::string, std::string> kNames{
      {"float32", "float"}, {"float64", "double"}, {"float16", "half"}, {"average", "avg"}};
  const auto known = kNames.find(name);
  return known == kNames.end() ? name : known->second;
}

void print_costs(const json& result) {
  int level = 0;
  for (const json& link : result["costs"]["levels"])
    std::printf(
        "# %slevel %d: %.1f us, %.2f us a further message, %.3f GB/s a link%s\n",
        result["cards"].is_null() ? "" : "through the host, ", ++level, 1e6 * link["latency_seconds"].get<double>(),
        1e6 * link["message_seconds"].get<double>(), link["bytes_per_second"].get<double>() / 1e9,
        link["piece_bytes"].is_null() ? "" : str(", in messages of ", format_bytes(link["piece_bytes"])).c_str());
}

/// The plan, and in how many launches it was another one.
std::string plan_of(const json& row) {
  const std::string plan = row.value("plan", "");
  if (!row.contains("by_launch")) return plan;
  size_t others = 0;
  for (const json& launch : row["by_launch"]) others += launch["plan"] != plan;
  return others == 0 ? plan : str(plan, " (another in ", others, " of ", row["by_launch"].size(), " launches)");
}

void print_row(const json& result, const json& row) {
  const auto number = [&](const char* key) { return row[key].get<double>(); };
  const auto whole = [&](const char* key) { return row[key].get<long long>(); };
  const double in_place = number("bytes") / number("in_place_seconds") / 1e9;
  char against[16] = "-", reached[16] = "-";
  if (!row["mpi_seconds"].is_null())
    std::snprintf(against, sizeof against, "%.3f", number("seconds") / number("mpi_seconds"));
  if (!row["percent_of_bound"].is_null()) std::snprintf(reached, sizeof reached, "%.1f", number("percent_of_bound"));
  std::printf("%12lld %13lld %8s %7s %10.1f %7.3f %7.3f %6lld %10.1f %7.3f %7.3f %6lld %7s %7s  %-16s %s\n",
              whole("bytes"), whole("count"), nccl_name(result["type"]).c_str(), nccl_name(result["op"]).c_str(),
              1e6 * number("seconds"), number("algbw"), number("busbw"), whole("wrong") - whole("in_place_wrong"),
              1e6 * number("in_place_seconds"), in_place, in_place * bus_factor(result), whole("in_place_wrong"),
              reached, against, row["algorithm"].get<std::string>().c_str(), plan_of(row).c_str());
}

}  // namespace

void complete(json& result) {
  std::map<int64_t, double> mpi;
  for (const json& row : result["rows"])
    if (row["algorithm"] == "mpi") mpi[row["bytes"]] = row["seconds"];
  for (json& row : result["rows"]) {
    const double bytes = row["bytes"], seconds = row["seconds"];
    row["algbw"] = bytes / seconds / 1e9;
    row["busbw"] = bytes / seconds / 1e9 * bus_factor(result);
    row["percent_of_bound"] = json(nullptr);
    if (!row["bound_seconds"].is_null()) row["percent_of_bound"] = row["bound_seconds"].get<double>() / seconds * 100;
    row["mpi_seconds"] = mpi.contains(row["bytes"]) ? json(mpi[row["bytes"]]) : json(nullptr);
    if (row.contains("predicted_seconds")) row["model_error"] = row_error(row);
  }
  result["model_error"] = model_error(result["rows"]);
}

void print(const json& result) {
  std::printf("# %d ranks (%s), %s\n", result["world_size"].get<int>(), result["levels"].get<std::string>().c_str(),
              result["mpi"].get<std::string>().c_str());
  print_costs(result);
  const bool on_cards = !result["cards"].is_null();
  if (on_cards) std::printf("# cards: %s\n", result["cards"].get<std::string>().c_str());
  const auto is_mpi = [](const json& row) { return row["algorithm"] == "mpi"; };
  if (!on_cards && std::none_of(result["rows"].begin(), result["rows"].end(), is_mpi))
    std::printf("# mpi: has no %s of %s\n", result["op"].get<std::string>().c_str(),
                result["type"].get<std::string>().c_str());
  std::printf("#%65s%32s\n", "out of place", "in place");
  std::printf("#%11s %13s %8s %7s %10s %7s %7s %6s %10s %7s %7s %6s %7s %7s  %-16s %s\n", "size", "count", "type",
              "redop", "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw", "#wrong", "bound", "/mpi",
              "algorithm", "plan");
  std::printf("#%11s %13s %8s %7s %10s %7s %7s %6s %10s %7s %7s %6s %7s\n", "(B)", "(elements)", "", "", "(us)",
              "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)", "", "(%)");
  for (const json& row : result["rows"]) print_row(result, row);
  const json& error = result["model_error"];
  if (error.is_null()) return;
  std::printf("# model: median error %.1f %% over %d sizes (worst %.1f %% at %s)\n",
              100 * error["median"].get<double>(), error["sizes"].get<int>(), 100 * error["worst"].get<double>(),
              format_bytes(error["worst_bytes"]).c_str());
}

void print_explanations(const json& result) {
  for (const json& row : result["rows"])
    if (row.contains("explanation")) std::printf("\n%s", row["explanation"].get<std::string>().c_str());
}

}  // namespace spillway::tools
