// spillway bench paging: step time under budgets, against unlimited memory and against stock LibTorch, interleaved.
//
// Every variant is a process of its own that takes one more step whenever it is told to. So a noisy machine is noisy
// for all of them, and stock LibTorch runs with its own allocator.
#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "benchmarks/commands/commands.h"
#include "benchmarks/commands/serve.h"
#include "benchmarks/commands/stock.h"
#include "benchmarks/commands/worker.h"
#include "benchmarks/pipeline/command.h"
#include "core/error.h"
#include "core/median.h"
#include "runtime/data/open_dataset.h"
#include "runtime/io/weights_sha256.h"
#include "runtime/passes/deterministic.h"
#include "runtime/training/run_context.h"
#include "runtime/training/train.h"
#include "runtime/training/unlimited_profile.h"
#include "swap/schedule/schedule.h"
#include "tools/cli/command.h"
#include "tools/cli/numbers.h"
#include "tools/cli/train_flags.h"
#include "tools/cli/write_json.h"

namespace spillway::tools {
using namespace runtime;
namespace {

using nlohmann::json;

/// Rounds that do not count: one on demand, then two under a schedule that is planned anew with better times.
constexpr int64_t kWarmUp = 3;

struct PagingBench {
  TrainFlags flags;
  std::vector<double> percents{100, 75, 50, 35, 25};
  int64_t steps = 5;
  std::string json_file;
  bool largest = false;
  bool peers = false;
  std::string worker;  // the variant that this process is: a way without budget (bench/stock.h) or a budget
};

constexpr const char* kObserver = "observer";
constexpr const char* kUnlimited = "none";
/// The variant that also has no budget, and runs every operator whole.
constexpr const char* kUnsplit = "unsplit";

/// Observes a step without a budget, in a process whose memory ends with it.
int serve_observation(const RunContext& context) {
  return serve([] { return json(); },
               [&] {
                 const UnlimitedProfile observed = profile_unlimited_step(context);
                 return json{{"peak_bytes", observed.peak_bytes},
                             {"library_bytes", observed.library_bytes},
                             {"floor_bytes", observed.floor_bytes},
                             {"floor_operator", observed.floor_operator},
                             {"floor_operator_bytes", observed.floor_operator_bytes},
                             {"step_seconds", observed.step_seconds}};
               });
}

UnlimitedProfile observation_of(const json& answer) {
  return {.peak_bytes = answer["peak_bytes"],
          .floor_bytes = answer["floor_bytes"],
          .library_bytes = answer["library_bytes"],
          .floor_operator = answer["floor_operator"],
          .floor_operator_bytes = answer["floor_operator_bytes"],
          .step_seconds = answer["step_seconds"]};
}

int serve_budget(const RunContext& context, int64_t budget_bytes) {
  TrainingRun run(context, budget_bytes, 1);
  double waited = 0;
  return serve(
      [&] {
        RunStep outcome = run.step();
        const double exposed = run.session().stats().pager.exposed_seconds;
        json answer{{"seconds", outcome.seconds}, {"loss", outcome.loss}, {"exposed", exposed - waited}};
        waited = exposed;
        return answer;
      },
      [&] {
        const SessionStats stats = run.session().stats();
        const swap::Schedule* schedule = run.session().schedule("plain");
        const double bound = schedule ? schedule->bound_seconds : 0;
        const bool planned = schedule && schedule->predicted_seconds > 0;  // else no schedule fits the budget
        return json{{"sha256", run.weights_sha256()},
                    {"peak_bytes", stats.peak_bytes},
                    {"bound_seconds", bound},
                    {"predicted_seconds", planned ? json(schedule->predicted_seconds) : json(nullptr)},
                    {"predicted_peak_bytes", planned ? json(schedule->predicted_peak_bytes) : json(nullptr)},
                    {"replays", stats.pager.replays},
                    {"bytes_out", stats.pager.bytes_out},
                    {"bytes_in", stats.pager.bytes_in}};
      });
}

struct PagingVariant {
  std::string name;
  double percent = 0;
  int64_t budget_bytes = kUnlimitedBytes;
  std::unique_ptr<Worker> worker = nullptr;
  std::vector<double> seconds{};
  std::vector<double> losses{};
  double exposed = 0;
  double first_seconds = 0;
  json last{};
};

std::vector<std::string> worker_arguments(const PagingBench& options, const std::string& variant) {
  TrainOptions t = options.flags.options;
  if (variant == kUnsplit) t.memory.split_bytes = kUnlimitedBytes;
  std::vector<std::string> arguments{"spillway", "bench", "paging", "--worker", variant};
  const std::vector<std::string> model = model_arguments(t);
  arguments.insert(arguments.end(), model.begin(), model.end());
  auto add = [&](const char* flag, const std::string& value) { arguments.insert(arguments.end(), {flag, value}); };
  if (t.memory.host_budget.kind == BudgetRequest::Kind::bytes)
    add("--host-budget", std::to_string(t.memory.host_budget.bytes));
  if (!t.memory.disk.empty()) add("--disk", t.memory.disk);
  add("--steps", std::to_string(options.steps));
  return arguments;
}

/// Runs rounds of one step each, every variant in turn.
void run_rounds(std::vector<PagingVariant>& variants, int64_t steps) {
  for (int64_t round = 0; round < steps + kWarmUp; ++round) {
    for (PagingVariant& v : variants) {
      json answer = v.worker->step();
      v.losses.push_back(answer["loss"]);
      if (round == 0) v.first_seconds = answer["seconds"];
      if (round < kWarmUp) continue;
      v.seconds.push_back(answer["seconds"]);
      v.exposed += answer.value("exposed", 0.0) / static_cast<double>(steps);
    }
    std::fputs(str("\rround ", round + 1, " of ", steps + kWarmUp).c_str(), stderr);
  }
  std::fprintf(stderr, "\n");
  for (PagingVariant& v : variants) v.last = v.worker->finish();
}

/// Reports the ways without a budget: stock, and the ways that need less memory by other means.
json report_peers(const std::vector<PagingVariant>& variants) {
  const double stock_step = median(variants[0].seconds);
  json rows = json::array();
  for (const PagingVariant& v : variants) {
    if (!is_stock(v.name)) continue;
    const auto peak = v.last["peak_bytes"].get<int64_t>();
    const double step = median(v.seconds);
    std::printf("%12s %12s %12s %12s %8.3f s %9.3f\n", v.name.c_str(), "-", peak ? format_bytes(peak).c_str() : "-",
                "-", step, step / stock_step);
    if (v.name == kStock) continue;
    rows.push_back({{"name", v.name},
                    {"peak_bytes", peak ? json(peak) : json(nullptr)},
                    {"step_seconds", step},
                    {"ratio_to_stock", step / stock_step}});
  }
  return rows;
}

/// Reports the cost of splitting, where there is room for every operator whole.
json report_splitting(const TrainOptions& options, const PagingVariant& split,
                      const std::vector<PagingVariant>& variants) {
  const auto whole =
      std::find_if(variants.begin(), variants.end(), [](const PagingVariant& v) { return v.name == kUnsplit; });
  if (whole == variants.end()) return nullptr;
  std::vector<double> ratios;
  for (size_t i = 0; i < split.seconds.size(); ++i) ratios.push_back(split.seconds[i] / whole->seconds[i]);
  const double seconds = median(whole->seconds), ratio = median(ratios);
  std::printf("splitting operators above %s: %+.1f %% of a step, the median of %zu rounds (whole %.3f s)\n",
              format_bytes(options.memory.split_in_use()).c_str(), 100 * (ratio - 1), ratios.size(), seconds);
  return {{"step_seconds", seconds}, {"peak_bytes", whole->last["peak_bytes"]}, {"split_to_unsplit", ratio}};
}

/// Reports one budget's line beside LibTorch alone and unlimited memory.
json report_budget(const PagingVariant& v, const PagingVariant& stock, const PagingVariant& unlimited) {
  const bool equal = v.losses == unlimited.losses && v.last["sha256"] == unlimited.last["sha256"];
  const bool limited = v.budget_bytes != kUnlimitedBytes;
  const double step = median(v.seconds), bound = v.last["bound_seconds"];
  const double to_stock = step / median(stock.seconds), to_unlimited = step / median(unlimited.seconds);
  const json &predicted = v.last["predicted_seconds"], &predicted_peak = v.last["predicted_peak_bytes"];
  char as_planned[32] = "-";
  if (!predicted.is_null()) std::snprintf(as_planned, sizeof as_planned, "%.3f s", predicted.get<double>());
  const std::string planned_peak = predicted_peak.is_null() ? "-" : format_bytes(predicted_peak);
  std::printf("%12s %12s %12s %12s %8.3f s %9.3f %12.3f %8.3f %10s %8.4f s %8lld %10s\n", v.name.c_str(),
              format_bytes(v.budget_bytes).c_str(), format_bytes(v.last["peak_bytes"]).c_str(), planned_peak.c_str(),
              step, to_stock, to_unlimited, step / bound, as_planned, v.exposed, v.last["replays"].get<long long>(),
              equal ? "yes" : "NO");
  return {{"budget_percent", limited ? json(v.percent) : json(nullptr)},
          {"budget_bytes", limited ? json(v.budget_bytes) : json(nullptr)},
          {"peak_bytes", v.last["peak_bytes"]},
          {"step_seconds", step},
          {"ratio_to_stock", to_stock},
          {"ratio_to_unlimited", to_unlimited},
          {"ratio_to_bound", step / bound},
          {"bound_seconds", bound},
          {"predicted_seconds", predicted},
          {"predicted_peak_bytes", predicted_peak},
          {"first_step_seconds", v.first_seconds},
          {"replays_per_run", v.last["replays"]},
          {"exposed_copy_seconds", v.exposed},
          {"bit_equal", equal}};
}

int64_t budget_of(double percent, const UnlimitedProfile& observed) {
  return runtime::in_bytes({.kind = BudgetRequest::Kind::percent, .percent = percent}, observed).bytes;
}

json report_infeasible(double percent, const UnlimitedProfile& observed) {
  const int64_t bytes = budget_of(percent, observed);
  std::printf("%11g%% %12s  infeasible: below the floor of %s (%s)\n", percent, format_bytes(bytes).c_str(),
              format_bytes(observed.floor_bytes).c_str(), observed.floor_operator.c_str());
  return {{"budget_percent", percent}, {"budget_bytes", bytes}, {"feasible", false}};
}

json report(const TrainOptions& options, const UnlimitedProfile& observed, const std::vector<PagingVariant>& variants,
            const std::vector<double>& infeasible) {
  const PagingVariant &stock = variants[0], &unlimited = variants[1];
  std::printf("%12s %12s %12s %12s %10s %9s %12s %8s %10s %10s %8s %10s\n", "budget", "bytes", "peak", "predicted",
              "step", "/stock", "/unlimited", "/bound", "predicted", "exposed", "replays", "bit-equal");
  const json peers = report_peers(variants);
  json rows = json::array();
  for (const PagingVariant& v : variants)
    if (!is_stock(v.name) && v.name != kUnsplit) rows.push_back(report_budget(v, stock, unlimited));
  for (double percent : infeasible) rows.push_back(report_infeasible(percent, observed));
  const json unsplit = report_splitting(options, unlimited, variants);
  return {{"model", options.model.name},
          {"edge", nullptr},
          {"stock_step_seconds", median(stock.seconds)},
          {"stock_bit_equal", stock.losses == unlimited.losses},
          {"unconstrained_peak_bytes", observed.peak_bytes},
          {"library_bytes", observed.library_bytes},
          {"floor_bytes", observed.floor_bytes},
          {"device", options.memory.device},
          {"engine", name(options.memory.engine)},
          {"peers", peers},
          {"unsplit", unsplit},
          {"rows", rows}};
}

void check_budgets(const std::vector<double>& percents) {
  for (double percent : percents)
    if (!(percent > 0 && percent <= 1000))
      throw BadRequest(str("--budgets has ", percent, "; allowed is above 0 up to 1000 per cent of the peak"));
}

/// The ways of training that are compared, and the budgets that are below the floor.
std::vector<PagingVariant> variants_of(const PagingBench& options, const TrainOptions& train_options,
                                       const UnlimitedProfile& observed, std::vector<double>& infeasible) {
  std::vector<PagingVariant> variants;
  variants.push_back({.name = std::string(kStock)});
  variants.push_back({.name = kUnlimited});
  if (train_options.memory.split_bytes != kUnlimitedBytes && !train_options.memory.may_exceed_budget())
    variants.push_back({.name = kUnsplit});
  for (std::string_view peer : kPeers)
    if (options.peers && can_train(train_options, peer)) variants.push_back({.name = std::string(peer)});
  for (double percent : options.percents) {
    const int64_t budget = budget_of(percent, observed);
    if (budget < observed.floor_bytes && !train_options.memory.may_exceed_budget())
      infeasible.push_back(percent);
    else
      variants.push_back({.name = str(percent, "%"), .percent = percent, .budget_bytes = budget});
  }
  return variants;
}

/// Trains as the parent of this process asks it to.
int serve_worker(const PagingBench& options, const RunContext& context) {
  if (is_stock(options.worker)) return serve_stock(context, options.worker);
  if (options.worker == kObserver) return serve_observation(context);
  const bool unlimited = options.worker == kUnlimited || options.worker == kUnsplit;
  return serve_budget(context, unlimited ? kUnlimitedBytes : std::stoll(options.worker));
}

int bench_paging(PagingBench& options) {
  TrainOptions& train_options = options.flags.options;
  check_budgets(options.percents);
  if (options.largest) return bench_largest(options.flags, options.percents, options.json_file);
  train_options = options.flags.resolve(1);
  train_options.steps = options.steps + kWarmUp;  // the cases of all are loaded before the first
  train_options.deterministic = true;
  use_deterministic_algorithms(train_options.deterministic, train_options.memory.device != "cpu");
  open_device_for(train_options, options.worker);
  const RunContext context = make_context(train_options, {});
  if (!options.worker.empty()) return serve_worker(options, context);

  const bool on_gpu = !options_device(train_options).is_cpu();
  const UnlimitedProfile observed = observation_of(Worker("observer", worker_arguments(options, kObserver)).finish());
  train_options.memory.host_budget = in_bytes(train_options.memory.host_budget, observed);
  std::vector<double> infeasible;
  std::vector<PagingVariant> variants = variants_of(options, train_options, observed, infeasible);
  for (PagingVariant& v : variants) {
    v.worker = std::make_unique<Worker>(
        v.name, worker_arguments(options, v.budget_bytes != kUnlimitedBytes ? std::to_string(v.budget_bytes) : v.name));
    if (on_gpu) v.worker->wait_until_ready();
  }
  run_rounds(variants, options.steps);
  json result = report(train_options, observed, variants, infeasible);
  if (const int64_t edge = options.flags.edge.value_or(synthetic_size(train_options.data.source)); edge > 0)
    result["edge"] = edge;
  if (!options.json_file.empty()) write_json(result, options.json_file);
  return kOk;
}

void add_measurement_flags(CLI::App& command, PagingBench& options) {
  command.option_defaults()->group("Measurement");
  add_number(command, "--budgets", options.percents,
             "Budgets in percent of the unconstrained peak; above 0, at most 1000")
      ->type_name("PERCENTS")
      ->delimiter(',')
      ->capture_default_str();
  add_number(command, "--steps", options.steps, "Measured steps per variant")
      ->type_name("N")
      ->capture_default_str()
      ->check(at_least(1));
  command.add_flag(
      "--peers", options.peers,
      "Also measure save_on_cpu (three ways on a GPU) and, for unet3d, activation checkpointing, all without Spillway");
  command.add_flag("--largest", options.largest,
                   "Measure instead the largest edge that trains under each budget, with and without paging");
  command.add_option("--json", options.json_file, "File for the results")->type_name("FILE")->default_str("none");
  command.add_option("--worker", options.worker)->group("");
}

}  // namespace

Run add_bench(CLI::App& app) {
  auto options = std::make_shared<PagingBench>();
  CLI::App* command = app.add_subcommand("bench", "Measures Spillway against its bounds and against stock LibTorch");
  command->require_subcommand(1);
  CLI::App* paging =
      command->add_subcommand("paging", "Measures step time under budgets against unlimited memory and stock LibTorch");
  options->flags.add_model_flags(*paging);
  options->flags.add_tier_flags(*paging);
  add_measurement_flags(*paging, *options);
  paging->footer("Example: spillway bench paging --model unet3d --edge 96 --filters 16 --json paging.json");
  const std::map<std::string, Run> others{{"kfac", add_bench_kfac(*command)},
                                          {"allreduce", add_bench_allreduce(*command)},
                                          {"pipeline", add_bench_pipeline(*command)}};
  return [=] {
    return paging->parsed() ? bench_paging(*options) : others.at(command->get_subcommands().front()->get_name())();
  };
}

}  // namespace spillway::tools
