#include "runtime/planning/largest_edge.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "benchmarks/commands/commands.h"
#include "benchmarks/commands/stock.h"
#include "core/error.h"
#include "core/host/memory_limit.h"
#include "runtime/models/model_info.h"
#include "runtime/training/run_context.h"
#include "runtime/training/train.h"
#include "runtime/training/unlimited_profile.h"
#include "tools/cli/command.h"
#include "tools/cli/write_json.h"

namespace spillway::tools {
using namespace runtime;
namespace {

using nlohmann::json;

constexpr int64_t kStep = 16;
/// The share of the host's memory that counted bytes may take; the rest is left for memory that is not counted.
constexpr double kUsable = 0.8;

/// Returns the needs of a step at this edge. On the CPU the step runs dry, so that no time is spent on computing.
EdgeNeed measure(TrainFlags& flags, int64_t edge) {
  std::fprintf(stderr, "\robserving a step at edge %lld … ", static_cast<long long>(edge));
  flags.edge = edge;
  const TrainOptions options = flags.resolve(1);
  const RunContext context = options.memory.device == "cpu" ? make_dry_context(options) : make_context(options, {});
  const UnlimitedProfile observed = profile_unlimited_step(context);
  return {.peak_bytes = observed.peak_bytes, .floor_bytes = observed.floor_bytes};
}

std::string shown(int64_t edge, int64_t limit) {
  return edge == 0 ? "none" : str(edge >= limit ? "≥ " : "", edge);
}

json edge_or_null(int64_t edge) {
  return edge == 0 ? json(nullptr) : json(edge);
}

int64_t edge_or_zero(const json& edge) {
  return edge.is_null() ? 0 : edge.get<int64_t>();
}

void check(TrainFlags& flags) {
  if (!flags.data.empty() || !flags.shape.empty() || model_info(flags.options.model.name).input != InputKind::volumes)
    throw BadRequest(
        "--largest makes volumes of its own, of one edge after another; it goes without --data and --shape");
  if (flags.resolve(1).memory.may_exceed_budget())
    throw BadRequest("--largest asks what fits a budget; the unified engine runs what does not, so use --engine gate");
}

/// Searches under each budget, with paging and without, and prints the results.
json report_budgets(LargestEdge& largest, const std::vector<double>& percents, int64_t base_peak_bytes) {
  json rows = json::array();
  for (double percent : percents) {
    const auto budget = static_cast<int64_t>(percent / 100 * static_cast<double>(base_peak_bytes));
    const int64_t paged = largest.within(budget, &EdgeNeed::floor_bytes);
    const int64_t unpaged = largest.within(budget, &EdgeNeed::peak_bytes);
    rows.push_back({{"budget_percent", percent},
                    {"budget_bytes", budget},
                    {"largest_edge", edge_or_null(paged)},
                    {"limited_by_host", paged == largest.limit()},
                    {"largest_edge_without_paging", edge_or_null(unpaged)}});
  }
  std::fprintf(stderr, "\n");
  std::printf("%8s %12s %14s %16s   (largest edge; the host's memory allows %lld)\n", "budget", "bytes", "paging",
              "without paging", static_cast<long long>(largest.limit()));
  for (const json& row : rows)
    std::printf("%7g%% %12s %14s %16s\n", row["budget_percent"].get<double>(),
                format_bytes(row["budget_bytes"].get<int64_t>()).c_str(),
                shown(edge_or_zero(row["largest_edge"]), largest.limit()).c_str(),
                shown(edge_or_zero(row["largest_edge_without_paging"]), largest.limit()).c_str());
  return rows;
}

/// Prints every edge that was tried.
json report_edges(const LargestEdge& largest) {
  json edges = json::array();
  std::printf("\n%8s %14s %14s\n", "edge", "peak", "floor");
  for (const auto& [edge, need] : largest.measured()) {
    std::printf("%8lld %14s %14s  (%.1f %%)\n", static_cast<long long>(edge), format_bytes(need.peak_bytes).c_str(),
                format_bytes(need.floor_bytes).c_str(),
                100 * static_cast<double>(need.floor_bytes) / static_cast<double>(need.peak_bytes));
    edges.push_back({{"edge", edge}, {"unconstrained_peak_bytes", need.peak_bytes}, {"floor_bytes", need.floor_bytes}});
  }
  return edges;
}

}  // namespace

int bench_largest(TrainFlags flags, const std::vector<double>& percents, const std::string& json_file) {
  check(flags);
  open_device_for(flags.resolve(1), "");
  const int64_t base = flags.edge.value_or(model_info(flags.options.model.name).size);
  const EdgeNeed at_base = measure(flags, base);
  const auto usable = static_cast<int64_t>(kUsable * static_cast<double>(host_memory_limit().bytes));
  LargestEdge largest(kStep, edge_for_memory(usable, at_base.peak_bytes, base, kStep),
                      [&](int64_t edge) { return edge == base ? at_base : measure(flags, edge); });
  flags.edge = base;
  const TrainOptions resolved = flags.resolve(1);
  const json rows = report_budgets(largest, percents, at_base.peak_bytes);
  const json edges = report_edges(largest);
  if (!json_file.empty())
    write_json(
        {{"model", flags.options.model.name},
         {"base_edge", base},
         {"split_bytes",
          resolved.memory.split_in_use() == kUnlimitedBytes ? json(nullptr) : json(resolved.memory.split_in_use())},
         {"batch", resolved.data.batch},
         {"filters", resolved.model.filters},
         {"largest_edge_for_host", largest.limit()},
         {"rows", rows},
         {"edges", edges}},
        json_file);
  return kOk;
}

}  // namespace spillway::tools
