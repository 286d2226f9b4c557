// spillway reproduce: published figures beside their predictions.
#include "tools/cli/command.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/reproduce/reproduce.h"
#include "core/device/cpu_device.h"
#include "core/error.h"
#include "tools/cli/write_json.h"

namespace spillway::tools {
using namespace runtime;
namespace {

using nlohmann::json;

struct ReproduceOptions {
  std::string name, times, json;
  bool list = false, all = false, markdown = false;
};

std::string number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.4g", value);
  return text.data();
}

std::string percent(const std::optional<double>& deviation) {
  std::array<char, 32> text{};
  if (!deviation) return "-";
  std::snprintf(text.data(), text.size(), "%+.1f %%", 100 * *deviation);
  return text.data();
}

std::string with_unit(const std::optional<double>& value, const std::string& unit) {
  if (!value) return "none";
  return number(*value) + (unit.empty() ? "" : " " + unit);
}

void print(const Reproduction& table) {
  int width = 44;
  for (const PublishedFigure& figure : table.figures) width = std::max(width, static_cast<int>(figure.what.size()));
  std::printf("%s: %s\n%-*s %14s %14s %10s\n", table.name.c_str(), table.source.c_str(), width, "", "published",
              "predicted", "deviation");
  for (const PublishedFigure& figure : table.figures)
    std::printf("%-*s %14s %14s %10s\n", width, figure.what.c_str(), with_unit(figure.published, figure.unit).c_str(),
                with_unit(figure.predicted, figure.unit).c_str(), percent(figure.deviation()).c_str());
  for (const std::string& assumption : table.assumptions) std::printf("  assumed: %s\n", assumption.c_str());
  std::printf("\n");
}

void print_markdown(const Reproduction& table) {
  std::printf("## %s\n\n%s.\n\n| figure | published | predicted | deviation |\n|---|---|---|---|\n", table.name.c_str(),
              table.source.c_str());
  for (const PublishedFigure& figure : table.figures)
    std::printf("| %s | %s | %s | %s |\n", figure.what.c_str(), with_unit(figure.published, figure.unit).c_str(),
                with_unit(figure.predicted, figure.unit).c_str(), percent(figure.deviation()).c_str());
  std::printf("\nAssumed:\n\n");
  for (const std::string& assumption : table.assumptions) std::printf("- %s\n", assumption.c_str());
  std::printf("\n");
}

json to_json(const Reproduction& table) {
  json figures = json::array();
  for (const PublishedFigure& figure : table.figures)
    figures.push_back({{"what", figure.what},
                       {"unit", figure.unit},
                       {"published", figure.published ? json(*figure.published) : json(nullptr)},
                       {"predicted", figure.predicted ? json(*figure.predicted) : json(nullptr)},
                       {"deviation", figure.deviation() ? json(*figure.deviation()) : json(nullptr)}});
  return {{"name", table.name}, {"source", table.source}, {"figures", figures}, {"assumptions", table.assumptions}};
}

std::vector<std::string> names_of(const ReproduceOptions& options) {
  if (options.all) return reproductions();
  if (options.name.empty()) throw BadRequest("reproduce needs a NAME, --list or --all");
  return {options.name};
}

int reproduce_command(const ReproduceOptions& options) {
  if (options.list) {
    if (!options.times.empty()) throw BadRequest("--list prints names, and takes no --times");
    for (const std::string& name : reproductions()) std::printf("%s\n", name.c_str());
    return kOk;
  }
  const BlockTimesSource blocks =
      options.times.empty() ? BlockTimesSource() : BlockTimesSource(read_block_profile(options.times));
  CpuDevice::reserve_addresses_of_dry_runs();
  json all = json::array();
  for (const std::string& name : names_of(options)) {
    const Reproduction table = reproduce(name, blocks);
    options.markdown ? print_markdown(table) : print(table);
    all.push_back(to_json(table));
  }
  if (!options.json.empty()) write_json(all, options.json);
  return kOk;
}

}  // namespace

Run add_reproduce(CLI::App& app) {
  auto options = std::make_shared<ReproduceOptions>();
  CLI::App* command = app.add_subcommand("reproduce", "Sets published figures beside what Spillway predicts for them");
  command->add_option("NAME", options->name, "What to reproduce; --list names them")->type_name("");
  command->add_flag("--list", options->list, "List the names");
  command->add_flag("--all", options->all, "Reproduce everything");
  command
      ->add_option(
          "--times", options->times,
          "For a name that begins with pipefisher-: times of a transformer block instead of the published ones")
      ->type_name("FILE.csv")
      ->default_str("none");
  command->add_flag("--markdown", options->markdown, "Print tables for docs/papers.md");
  command->add_option("--json", options->json, "File for the results")->type_name("FILE")->default_str("none");
  command->footer("Example: spillway reproduce kaisa-table5");
  return [options] { return reproduce_command(*options); };
}

}  // namespace spillway::tools
