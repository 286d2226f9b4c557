#include "benchmarks/allreduce/table.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "benchmarks/allreduce/inputs.h"
#include "core/bytes.h"
#include "core/error.h"
#include "ddl/comm/mpi.h"

namespace spillway::tools {
namespace {

using nlohmann::json;

/// Returns nccl-tests' name of a type or an operation.
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

/// Returns the plan, and in how many launches it was another one.
std::string plan_of(const json& row) {
  std::string plan = row.value("plan", "");
  if (!row.contains("by_launch")) return plan;
  size_t others = 0;
  for (const json& launch : row["by_launch"]) others += launch["plan"] != plan;
  return others == 0 ? plan : str(plan, " (another in ", others, " of ", row["by_launch"].size(), " launches)");
}

/// Prints the reductions that MPI does not know, and that therefore have no row of its own.
void print_what_mpi_lacks(const json& rows) {
  std::set<std::pair<std::string, std::string>> lacking;
  for (const json& row : rows)
    if (row["op"].is_string() && !ddl::MpiRuntime::reduces(parse_element(row["type"].get<std::string>()),
                                                           parse_reduction(row["op"].get<std::string>())))
      lacking.emplace(row["op"], row["type"]);
  for (const auto& [op, type] : lacking) std::printf("# mpi: has no %s of %s\n", op.c_str(), type.c_str());
}

std::string text_of(const json& value, const std::string& none) {
  return value.is_string() ? value.get<std::string>() : none;
}

/// Prints nccl-tests' lines that tell where each rank runs.
void print_ranks(const json& result) {
  for (const json& rank : result["ranks"]) {
    const std::string name = text_of(rank["name"], ""), bus_id = text_of(rank["bus_id"], "");
    std::printf("#  Rank %2d Pid %6lld on %10s device %s%s%s\n", rank["rank"].get<int>(), rank["pid"].get<long long>(),
                rank["host"].get<std::string>().c_str(), rank["device"].get<std::string>().c_str(),
                bus_id.empty() ? "" : str(" [", bus_id, "]").c_str(), name.empty() ? "" : (" " + name).c_str());
  }
}

/// Prints the settings in a line of nccl-tests' form.
void print_settings(const json& result) {
  const json &timing = result["timing"], &rows = result["rows"];
  int64_t least = rows[0]["bytes"], most = least;
  for (const json& row : rows) {
    least = std::min(least, row["bytes"].get<int64_t>());
    most = std::max(most, row["bytes"].get<int64_t>());
  }
  std::printf(
      "# nThread 1 nGpus 1 minBytes %lld maxBytes %lld step: %s warmup iters: %d iters: %d repeats: %d validation: 1 "
      "offset: %lld\n",
      static_cast<long long>(least), static_cast<long long>(most), result["step"].get<std::string>().c_str(),
      timing["warmup"].get<int>(), timing["iterations"].get<int>(), timing["repeats"].get<int>(),
      result["offset_bytes"].get<long long>());
}

/// The choice of the times in a row that a table shows: of calls alone or of calls back to back.
struct Times {
  bool back_to_back = false;
  const json& of(const json& row) const { return back_to_back ? row["back_to_back"] : row; }
};

/// Returns the number of elements in nccl-tests' way: of a rank's part where ranks have parts.
long long count_of(const json& result, const json& row) {
  const bool parts = row["collective"] == "reduce_scatter" || row["collective"] == "all_gather";
  return row["count"].get<long long>() / (parts ? result["world_size"].get<int>() : 1);
}

/// Prints the columns behind nccl-tests' own: the share of the bound, the time over the installed MPI's, and the spread
/// of calls alone.
void print_more(const json& row, bool back_to_back) {
  char against[16] = "-", reached[16] = "-";
  if (!row["mpi_seconds"].is_null())
    std::snprintf(against, sizeof against, "%.3f", row["seconds"].get<double>() / row["mpi_seconds"].get<double>());
  if (!row["percent_of_bound"].is_null())
    std::snprintf(reached, sizeof reached, "%.1f", row["percent_of_bound"].get<double>());
  const json& spread = row["spread"];
  if (!back_to_back)
    std::printf(" %7s %7s %10.1f %10.1f %10.1f", reached, against, 1e6 * spread["min_seconds"].get<double>(),
                1e6 * spread["p95_seconds"].get<double>(), 1e6 * spread["max_seconds"].get<double>());
  std::printf("  %-16s %s\n", row["algorithm"].get<std::string>().c_str(), plan_of(row).c_str());
}

void print_row(const json& result, const json& row, const Times& times) {
  const json& found = times.of(row);
  const auto number = [&](const char* key) { return found[key].get<double>(); };
  const long long in_place_wrong = row["in_place_wrong"], wrong = row["wrong"].get<long long>() - in_place_wrong;
  const std::string root = row["root"].is_null() ? "-1" : row["root"].dump();
  std::printf("%12lld %13lld %8s %7s %6s %10.1f %7.3f %7.3f %6lld %10.1f %7.3f %7.3f %6lld",
              row["bytes"].get<long long>(), count_of(result, row), nccl_name(row["type"]).c_str(),
              nccl_name(text_of(row["op"], "none")).c_str(), root.c_str(), 1e6 * number("seconds"), number("algbw"),
              number("busbw"), wrong, 1e6 * number("in_place_seconds"), number("in_place_algbw"),
              number("in_place_busbw"), in_place_wrong);
  print_more(row, times.back_to_back);
}

void print_column_names(bool back_to_back) {
  const char* more = back_to_back ? "" : "   bound    /mpi        min        p95        max";
  const char* units = back_to_back ? "" : "     (%)               (us)       (us)       (us)";
  std::printf("#%72s%32s\n", "out-of-place", "in-place");
  std::printf("#%11s %13s %8s %7s %6s %10s %7s %7s %6s %10s %7s %7s %6s%s  %-16s %s\n", "size", "count", "type",
              "redop", "root", "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw", "#wrong", more,
              "algorithm", "plan");
  std::printf("#%11s %13s %8s %7s %6s %10s %7s %7s %6s %10s %7s %7s %6s%s\n", "(B)", "(elements)", "", "", "", "(us)",
              "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)", "", units);
}

void print_table(const json& result, const Times& times) {
  const json& timing = result["timing"];
  if (times.back_to_back)
    std::printf("# back to back: the mean of %d calls between two readings of the clock, %s over ranks\n",
                timing["iterations"].get<int>(), timing["back_to_back_average"].get<std::string>().c_str());
  else
    std::printf("# each call alone: a barrier before it, the median of %d, %s over ranks\n",
                timing["repeats"].get<int>(), timing["average"].get<std::string>().c_str());
  std::string collective;
  for (const json& row : result["rows"]) {
    if (row["collective"] != collective) {
      collective = row["collective"];
      std::printf("# collective: %s\n", collective.c_str());
      print_column_names(times.back_to_back);
    }
    print_row(result, row, times);
  }
}

/// Prints the last lines of nccl-tests. The bandwidth is that of our own way; those of the other ways follow.
void print_last_lines(const json& result) {
  const long long wrong = result["out_of_bounds"];
  std::printf("# Out of bounds values : %lld %s\n", wrong, wrong == 0 ? "OK" : "FAILED");
  const json& averages = result["avg_bus_bandwidth"];
  const std::string first = result["rows"][0]["algorithm"];
  std::printf("# Avg bus bandwidth    : %g\n", averages[first].get<double>());
  if (averages.size() > 1)
    for (const auto& [algorithm, bandwidth] : averages.items())
      std::printf("#   %-18s : %g\n", algorithm.c_str(), bandwidth.get<double>());
}

}  // namespace

void print(const json& result) {
  std::printf("# %d ranks (%s), %s\n", result["world_size"].get<int>(), result["levels"].get<std::string>().c_str(),
              result["mpi"].get<std::string>().c_str());
  print_settings(result);
  print_ranks(result);
  print_costs(result);
  const bool on_gpus = !result["cards"].is_null();
  if (on_gpus) std::printf("# GPUs: %s\n", result["cards"].get<std::string>().c_str());
  if (!on_gpus) print_what_mpi_lacks(result["rows"]);
  print_table(result, {.back_to_back = false});
  if (result["timing"]["iterations"] > 0) print_table(result, {.back_to_back = true});
  const json& error = result["model_error"];
  if (!error.is_null())
    std::printf("# model: median error %.1f %% over %d sizes (worst %.1f %% at %s)\n",
                100 * error["median"].get<double>(), error["sizes"].get<int>(), 100 * error["worst"].get<double>(),
                format_bytes(error["worst_bytes"]).c_str());
  print_last_lines(result);
  std::fflush(stdout);
}

void print_explanations(const json& result) {
  for (const json& row : result["rows"])
    if (row.contains("explanation")) std::printf("\n%s", row["explanation"].get<std::string>().c_str());
}

}  // namespace spillway::tools
