// spillway plan: what a run will need and take on given devices, without running it.
#include <ATen/Parallel.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/device/cpu_device.h"
#include "core/error.h"
#include "core/host/cache_folder.h"
#include "runtime/data/open_dataset.h"
#include "runtime/dry_runs/make_plan.h"
#include "runtime/models/model_info.h"
#include "runtime/report/plan_json.h"
#include "runtime/report/plan_page.h"
#include "tools/cli/command.h"
#include "tools/cli/numbers.h"
#include "tools/cli/train_flags.h"
#include "tools/cli/write_json.h"
#include "tools/spillway/allow_flag.h"
#include "tools/spillway/plan_tables.h"

namespace spillway::tools {
using namespace runtime;
namespace {

struct Options {
  TrainFlags flags;
  int world = 1, devices_per_link = 1;
  std::string levels, profile = "cpu", link_out, link_in, json, report;
  std::vector<std::string> budgets;
  std::vector<int64_t> edges;
  std::vector<std::string> allowed;
  bool largest_batch = false, propose = false;
};

/// Reads `75GB/s`.
double parse_rate(const char* flag, const std::string& text) {
  const bool is_rate = text.ends_with("/s");
  const int64_t bytes = is_rate ? parse_bytes(text.substr(0, text.size() - 2)) : 0;
  if (bytes > 0) return static_cast<double>(bytes);
  throw BadRequest(
      str(flag, " is '", text, "'; allowed is a size a second", is_rate ? " above 0" : "", ", such as 75GB/s"));
}

DeviceProfile profile_of(const Options& options, MachineTimes& machine) {
  DeviceProfile profile = find_profile(options.profile, machine);
  if (!options.link_out.empty()) profile.copies.out_bytes_per_second = parse_rate("--link-out", options.link_out);
  if (!options.link_in.empty()) profile.copies.in_bytes_per_second = parse_rate("--link-in", options.link_in);
  return profile;
}

/// Returns the options of a run on data of another size.
TrainOptions of_size(const Options& options, int64_t size) {
  TrainFlags flags = options.flags;
  flags.edge = size;
  flags.data.clear();
  flags.shape.clear();
  return flags.resolve(options.world);
}

int64_t size_of(const TrainOptions& options) {
  if (options.data.shape[0] > 0) return options.data.shape[0];
  const int64_t size = synthetic_size(options.data.source);
  return size > 0 ? size : model_info(options.model.name).size;
}

/// Throws where a host budget would change nothing in the plan.
void check_host_budget(const TrainOptions& options) {
  const BudgetRequest& host = options.memory.host_budget;
  if (host.kind == BudgetRequest::Kind::percent)
    throw BadRequest("plan takes --host-budget as a size, because a percentage is of a peak that it is yet to find");
  if (host.kind == BudgetRequest::Kind::bytes && options.memory.disk.empty())
    throw BadRequest(
        "plan takes --host-budget with --disk alone; without a disk the host memory that is needed is printed");
}

PlanRequest request_of(Options& options) {
  PlanRequest request{.options = options.flags.resolve(options.world)};
  check_host_budget(request.options);
  request.size = size_of(request.options);
  request.largest_batch = options.largest_batch;
  request.allowed = options.allowed;
  request.propose = options.propose;
  for (const std::string& budget : options.budgets) request.budgets.push_back(BudgetRequest::parse(budget));
  for (int64_t edge : options.edges) request.sizes[edge] = of_size(options, edge);
  if (options.edges.empty() && !options.budgets.empty()) request.sizes[request.size] = request.options;
  if (!options.edges.empty() && options.budgets.empty())
    for (double percent : {75.0, 50.0, 35.0, 25.0})
      request.budgets.push_back({.kind = BudgetRequest::Kind::percent, .percent = percent});
  return request;
}

int plan_command(Options& options) {
  CpuDevice::reserve_addresses_of_dry_runs();
  if (options.flags.device != "auto" && options.flags.device != "cpu")
    throw BadRequest("plan runs nothing, so it takes no --device; --device-profile tells what to plan for");
  const PlanRequest request = request_of(options);
  if (request.options.pipeline.choose_interval)
    throw BadRequest(
        "plan runs nothing, so it takes --inverse-interval as a number; auto is chosen by steps that are run");
  ClusterShape shape = ClusterShape::parse(options.levels, options.world);
  shape.devices_per_link = options.devices_per_link;
  at::set_num_threads(threads_of_rank(shape));
  const auto machine = std::make_shared<MachineTimes>(kernel_cache_folder());
  PlannedCluster cluster(profile_of(options, *machine), shape, machine);
  const PlanReport report = make_plan(request, cluster);
  std::fputs(plan_tables(report).c_str(), stdout);
  if (!options.json.empty()) write_json(to_json(report), options.json);
  if (!options.report.empty()) write_plan_page(options.report, report);
  return report.plan.is_feasible() ? kOk : kInfeasible;
}

void add_cluster_flags(CLI::App& command, Options& options) {
  command.option_defaults()->group("Machines");
  add_number(command, "--world", options.world, "Number of ranks")
      ->type_name("N")
      ->capture_default_str()
      ->check(at_least(1));
  command.add_option("--levels", options.levels, "Levels of the topology, as in 4x2: 4 ranks on each of 2 hosts")
      ->type_name("SHAPE")
      ->default_str("all on one host");
  command
      .add_option("--device-profile", options.profile,
                  "Speed of the devices: cpu (this machine, measured once), h200, h100, a100, v100, or a JSON file")
      ->type_name("NAME")
      ->capture_default_str();
  command.add_option("--link-out", options.link_out, "Bandwidth of copies from the device to the host, as in 75GB/s")
      ->type_name("RATE")
      ->default_str("the profile's");
  command.add_option("--link-in", options.link_in, "Bandwidth of copies from the host to the device")
      ->type_name("RATE")
      ->default_str("the profile's");
  add_number(command, "--devices-per-link", options.devices_per_link,
             "Devices of a host that share one link, as behind a PCIe switch")
      ->type_name("N")
      ->capture_default_str()
      ->check(at_least(1));
}

void add_change_flags(CLI::App& command, Options& options) {
  command.option_defaults()->group("Changes of bits");
  add_allow_flag(command, options.allowed);
  command.add_flag("--propose", options.propose,
                   "Print what each change would save; without this flag only where the run does not fit");
}

void add_frontier_flags(CLI::App& command, Options& options) {
  command.option_defaults()->group("Frontier");
  command.add_option("--budgets", options.budgets, "Budgets to compare: sizes, or percentages of each size's peak")
      ->type_name("BUDGETS")
      ->default_str("none; with --edges 75%,50%,35%,25%")
      ->delimiter(',');
  add_number(command, "--edges", options.edges, "Values of --edge to compare")
      ->type_name("N,…")
      ->default_str("the run's own")
      ->delimiter(',')
      ->check(at_least(1));
  command.add_flag("--largest-batch", options.largest_batch, "Also find the largest batch that fits each budget");
  command.option_defaults()->group("Output");
  command.add_option("--report", options.report, "Folder for plan.html")->type_name("DIR")->default_str("none");
  command.add_option("--json", options.json, "File for the results")->type_name("FILE")->default_str("none");
}

}  // namespace

Run add_plan(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("plan", "Predicts the memory and time of a run under a budget, without running it");
  options->flags.add_model_flags(*command);
  options->flags.add_training_flags(*command);
  options->flags.add_pipeline_flags(*command);
  add_cluster_flags(*command, *options);
  add_change_flags(*command, *options);
  add_frontier_flags(*command, *options);
  command->footer(
      "Example: spillway plan --edges 96,128,160,192 --budgets 16GB --device-profile v100 --link-out 75GB/s");
  return [options] { return plan_command(*options); };
}

}  // namespace spillway::tools
