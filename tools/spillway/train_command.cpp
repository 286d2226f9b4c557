#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "benchmarks/commands/stock.h"
#include "core/device/device.h"
#include "core/device/open_device.h"
#include "core/error.h"
#include "core/host/cache_folder.h"
#include "core/interrupted.h"
#include "core/parse_number.h"
#include "ddl/comm/collectives.h"
#include "ddl/comm/mpi.h"
#include "ddl/topology/link_cost_cache.h"
#include "ddl/torch/gpu_backend.h"
#include "runtime/dry_runs/simulated_workers.h"
#include "runtime/passes/deterministic.h"
#include "runtime/report/report.h"
#include "runtime/training/run_context.h"
#include "tools/cli/command.h"
#include "tools/cli/launch.h"
#include "tools/cli/levels_flag.h"
#include "tools/cli/same_options.h"
#include "tools/cli/train_flags.h"
#include "tools/cli/write_json.h"
#include "tools/spillway/allow_flag.h"
#include "tools/spillway/progress.h"

namespace spillway::tools {
using namespace runtime;
namespace {

TrainRequests requests;  // the only data that signal handlers reach

/// Lets the first Ctrl-C end the run with what it has, and the second one end the process. SIGUSR2 is for launchers
/// that pass it on, and would kill their ranks after a Ctrl-C.
void end_when_asked() {
  struct sigaction action {};
  action.sa_handler = [](int number) {
    if (!requests.stop.exchange(true) || number == SIGUSR2) return;
    std::signal(number, SIG_DFL);
    std::raise(number);
  };
  action.sa_flags = SA_RESTART;
  for (const int number : {SIGINT, SIGTERM, SIGUSR2}) ::sigaction(number, &action, nullptr);
}

/// Asks for a checkpoint on SIGUSR1, which batch systems can send ahead of their time limit. It is called at the
/// command's start, because the signal ends a process that has no handler for it.
void save_when_asked() {
  struct sigaction action {};
  action.sa_handler = [](int) { requests.checkpoint = true; };
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGUSR1, &action, nullptr);
}

struct CommandOptions {
  TrainFlags flags;
  std::string json, report, levels = "hosts";
  std::vector<std::string> compare, allowed;
  double comm_timeout_seconds = 60;
  bool calibrate = false;
  bool quiet = false;
  std::string plan = "auto";
};

/// Lets this rank use its fair share of its host's cores, because a launcher of several ranks may have bound each to
/// one core. All ranks use as many threads as the rank with the fewest CPUs has. The reason is that a sum's last bits
/// depend on how many threads split it.
void take_share_of_host(ddl::Communicator& comm) {
  const int cpus = take_share_of_cores(comm).size();
  std::vector<int> all(comm.size());
  ddl::allgather(comm, std::as_bytes(std::span(&cpus, 1)), std::as_writable_bytes(std::span(all)));
  at::set_num_threads(*std::min_element(all.begin(), all.end()));
}

/// Reads the learning rate of a run to compare with, as in `adam@0.01`, or returns the optimizer's default.
double compared_lr(const std::string& what, OptimizerKind optimizer) {
  const size_t at = what.find('@');
  if (at == std::string::npos) return default_lr(optimizer);
  const double lr = parse_number<double>(std::string_view(what).substr(at + 1)).value_or(0);
  if (!(lr > 0) || !std::isfinite(lr))
    throw BadRequest(
        str("--compare is '", what, "'; the learning rate of ", name(optimizer), "@LR is a number above 0"));
  return lr;
}

/// Returns the options of a run to compare with: the main run's, changed as `adam`, `muon@0.01` or `unlimited` says.
TrainOptions compared_options(TrainOptions options, const std::string& what, std::optional<double> weight_decay) {
  options.checkpoint.folder.clear();
  options.checkpoint.every = 0;
  options.checkpoint.resume = false;
  const std::string kind = what.substr(0, what.find('@'));
  if (kind == "unlimited" && kind == what) {
    options.memory.budget = {};
    options.kfac.choose_grad_worker_frac = false;
    options.steps = std::min<int64_t>(options.steps, 5);
    options.epochs = 0;
    options.validate_every = options.steps;
    return options;
  }
  if (!is_optimizer(kind))
    throw BadRequest(str("--compare is '", what, "'; allowed is unlimited, an optimizer such as adam, or adam@LR"));
  options.kfac.enabled = false;
  options.pipeline.choose_interval = false;
  OptimizerOptions& optimizer = options.optimizer;
  optimizer.kind = parse_optimizer(kind);
  optimizer.lr = compared_lr(what, optimizer.kind);
  optimizer.nesterov = false;
  optimizer.weight_decay = weight_decay.value_or(default_weight_decay(optimizer.kind));
  optimizer.rest.reset();
  if (is_of_matrices(optimizer.kind)) optimizer.rest = {OptimizerKind::adamw, optimizer.lr};
  options.validate();
  return options;
}

/// The processes that were started together with this one.
struct Launch {
  std::optional<ddl::MpiRuntime> mpi = std::nullopt;
  std::shared_ptr<ddl::Communicator> world = nullptr;  ///< null: this process runs alone
  ddl::CommOptions options;

  int size() const { return world ? world->size() : 1; }
  bool is_first() const { return !world || world->rank() == 0; }
};

void join_launch(Launch& launch, const CommandOptions& options, const CLI::App& command) {
  launch.options = comm_options(options.comm_timeout_seconds);
  if (!ddl::launched_by_mpi()) return check_levels_alone(options.levels);
  launch.mpi.emplace(launch.options.deadline);
  launch.world = launch.mpi->world(launch.options);
  require_same_options(command, *launch.world);
  take_share_of_host(*launch.world);
}

TrainOptions resolve(CommandOptions& options, const Launch& launch) {
  TrainOptions train_options = options.flags.resolve(launch.size());
  if (launch.size() > 1 && train_options.memory.device == "cuda")
    train_options.memory.device = str("cuda:", launch.world->local_rank());
  const bool limited = train_options.memory.budget.kind != BudgetRequest::Kind::none;
  if (!limited && train_options.memory.host_budget.kind != BudgetRequest::Kind::none)
    throw BadRequest("--host-budget has no effect without --budget, because nothing leaves the device then");
  if (!limited && !train_options.memory.disk.empty())
    throw BadRequest("--disk has no effect without --budget, because nothing leaves the device then");
  return train_options;
}

/// The communicator that operators use, and the rates of its links.
struct Links {
  ddl::Comm comm = {};  ///< null where one rank runs alone
  ddl::LinkCosts costs = {};
};

Links connect(Launch& launch, const CommandOptions& options, const Device& device) {
  Links links;
  if (!launch.world) return links;
  auto world = with_levels(*launch.mpi, std::move(launch.world), launch.options, options.levels, bus_id_of(device));
  if (world->size() == 1) return links;
  links.costs = ddl::link_costs(*world, link_cache_folder(), options.calibrate);
  links.comm = ddl::make_comm(std::move(world), links.costs.costs);
  return links;
}

void tell_links(Progress& progress, const Links& links, const Device& device) {
  if (!links.comm) return;
  progress.on_decision(describe(links.costs));
  if (!device.torch_device().is_cuda()) return;
  (void)links.comm->gpus->levels(device.torch_device());
  progress.on_decision(str("tensors on GPUs: ", links.comm->gpus->decision()));
}

/// Takes the changes that are allowed, and returns what to say of them.
std::string take_allowed(const CommandOptions& options, const Device& device, const ddl::Comm& comm,
                         TrainOptions& train_options) {
  if (train_options.checkpoint.resume)
    throw BadRequest("--allow does not go with --resume; give the flags that the run's first start printed");
  if (!device.torch_device().is_cpu())
    throw BadRequest(
        "--allow plans with this machine's kernels on the CPU; on a GPU give the flags that plan proposes");
  TakenChanges changed = take_changes(train_options, options.allowed, comm, kernel_cache_folder());
  train_options = std::move(changed.options);
  std::string flags;
  for (auto change = changed.taken.begin(); change != changed.taken.end(); ++change) {
    const auto same = [&](const Proposal& later) { return later.name == change->name; };
    if (std::none_of(change + 1, changed.taken.end(), same)) flags += str(" ", change->flags);  // the last of its kind
  }
  return changed.taken.empty() ? "no allowed change helps" : str("allowed changes are taken:", flags);
}

/// Takes what a plan changes or chooses before the run is made, and returns what to say of it.
std::string plan_before(const CommandOptions& options, const Device& device, const ddl::Comm& comm,
                        TrainOptions& train_options) {
  std::string decision;
  if (!options.allowed.empty()) decision = take_allowed(options, device, comm, train_options);
  const bool weighs_pipelines = train_options.pipeline.ranks > 1 && comm && options.plan == "auto" &&
                                train_options.pipeline.schedule == PipelineSchedule::automatic &&
                                train_options.memory.budget.kind == BudgetRequest::Kind::bytes;
  if (!weighs_pipelines) return decision;
  const std::string chosen = choose_pipeline(train_options, comm, kernel_cache_folder());
  return decision.empty() ? chosen : str(decision, "; ", chosen);
}

/// Gives the run K-FAC's options as they were made when the context was, and as the main run chose the others.
void take_kfac(RunContext& other, const RunContext& context, const KfacSummary& main_run) {
  kfac::KfacOptions& kfac = other.options.kfac.preconditioner;
  kfac = context.options.kfac.preconditioner;
  kfac.strategy = kfac::parse_strategy(main_run.strategy);
  kfac.grad_worker_frac = main_run.grad_worker_frac;
  if (!std::exchange(other.options.pipeline.choose_interval, false)) return;
  set_refresh(other, main_run.plan.front().interval, main_run.curvature_delay);
}

/// Returns the context of a run to compare with. It differs in nothing that the main run chose by its budget or times.
RunContext beside(const RunContext& context, const TrainOptions& options, const TrainResult& main_run) {
  RunContext other = context;
  other.options = options;
  other.start = {};
  if (options.kfac.enabled)
    take_kfac(other, context, *main_run.kfac);
  else
    other.counted_kfac_share.reset();
  if (options.memory.budget.kind != BudgetRequest::Kind::none)
    other.options.memory.budget = {.kind = BudgetRequest::Kind::bytes, .bytes = main_run.budget_bytes};
  return other;
}

nlohmann::json json_of(const TrainResult& result, const std::vector<NamedResult>& others) {
  nlohmann::json json = to_json(result);
  for (const NamedResult& other : others) json["compared"][other.name] = to_json(other.result);
  return json;
}

void write_results(const CommandOptions& options, const TrainResult& result, const std::vector<NamedResult>& others) {
  if (!options.json.empty()) write_json(json_of(result, others), options.json);
  if (!options.report.empty()) write_report(options.report, result, others);
}

void print_results(const CommandOptions& options, const TrainResult& result, const std::vector<NamedResult>& others) {
  if (options.quiet) return;
  print_summary(result, others);
  if (options.report.empty()) return;
  std::printf("report: %s\n", (std::filesystem::absolute(options.report) / "report.html").c_str());
}

/// Trains. Returns nothing when the run is interrupted before it has results.
std::optional<TrainResult> train_until_asked(const RunContext& context, Progress& progress) {
  try {
    return train_in_context(context, progress, &requests);
  } catch (const Interrupted&) {
    return std::nullopt;
  }
}

/// Runs the runs to compare with, one after another, until one is interrupted. Returns true then. Results are written
/// after each of them, because a later one may fail.
bool compare(const CommandOptions& options, const std::vector<TrainOptions>& compared, const RunContext& context,
             const TrainResult& main_run, Progress& progress, std::vector<NamedResult>& others) {
  for (size_t i = 0; i < compared.size(); ++i) {
    progress.heading(str("compared with ", options.compare[i]));
    auto result = train_until_asked(beside(context, compared[i], main_run), progress);
    if (!result) return true;
    others.push_back({options.compare[i], std::move(*result)});
    if (context.rank() == 0) write_results(options, main_run, others);
    if (others.back().result.interrupted) return true;
  }
  return false;
}

int say_interrupted(bool first, const std::string& when) {
  if (first) std::fprintf(stderr, "spillway: interrupted %s\n", when.c_str());
  return kInterrupted;
}

/// Checks, before the training, that the results can be written.
void check_outputs(const CommandOptions& options) {
  if (!options.json.empty()) check_writable(options.json);
  if (!options.report.empty()) check_report_dir(options.report);
}

/// Forgets remembered rates of links where the run's allreduces show that they are wrong.
void check_rates(const TrainResult& result, const Links& links, Progress& progress) {
  if (!result.allreduce) return;
  const AllreduceSummary& allreduce = *result.allreduce;
  const std::string said = ddl::forget_if_wrong(links.costs, allreduce.bound_seconds, allreduce.seconds_per_step);
  if (!said.empty()) progress.on_decision(said);
}

int train_command(CommandOptions& options, const CLI::App& command) {
  save_when_asked();
  Launch launch;
  join_launch(launch, options, command);
  const bool first = launch.is_first();
  TrainOptions train_options = resolve(options, launch);
  use_deterministic_algorithms(train_options.deterministic, train_options.memory.device != "cpu");
  Device& device = open_device(train_options.memory.device);
  const Links links = connect(launch, options, device);
  const std::string decision = plan_before(options, device, links.comm, train_options);
  std::vector<TrainOptions> compared;
  for (const std::string& what : options.compare)
    compared.push_back(compared_options(train_options, what, options.flags.weight_decay));
  RunContext context = make_context(train_options, links.comm);
  if (options.plan == "auto" && links.comm && device.torch_device().is_cpu())
    context.planner = std::make_shared<SimulatedWorkers>(links.comm, kernel_cache_folder());
  end_when_asked();

  Progress progress(first && !options.quiet, ddl::launched_by_mpi(), device.ledger());
  progress.before_start([&] {
    if (first) check_outputs(options);
  });
  tell_links(progress, links, device);
  if (!decision.empty()) progress.on_decision(decision);
  const std::optional<TrainResult> trained = train_until_asked(context, progress);
  if (!trained) return say_interrupted(first, "before the first step: there are no results");
  const TrainResult& result = *trained;
  if (first) check_rates(result, links, progress);
  std::vector<NamedResult> others;
  bool stopped = result.interrupted;
  try {
    if (first) write_results(options, result, others);
    if (!stopped) stopped = compare(options, compared, context, result, progress, others);
  } catch (...) {
    if (first && !options.quiet) print_summary(result, others);
    throw;
  }
  if (first) print_results(options, result, others);
  return stopped ? say_interrupted(first, str("after step ", result.losses.size())) : kOk;
}

void add_output_flags(CLI::App& command, CommandOptions& options) {
  command.option_defaults()->group("Output");
  command
      .add_option("--compare", options.compare,
                  "Also run for comparison: unlimited (five steps, no budget) or an optimizer, adam or adam@LR; "
                  "several with commas")
      ->type_name("RUNS")
      ->default_str("none")
      ->delimiter(',');
  command.add_option("--report", options.report, "Folder for report.html and trace.json")
      ->type_name("DIR")
      ->default_str("none");
  command.add_option("--json", options.json, "File for the results")->type_name("FILE")->default_str("none");
  command.add_flag("--quiet", options.quiet, "Print errors only");
}

}  // namespace

Run add_train(CLI::App& app) {
  auto options = std::make_shared<CommandOptions>();
  CLI::App* command = app.add_subcommand("train", "Trains a model under a byte budget; under mpirun, data-parallel");
  options->flags.add_model_flags(*command);
  options->flags.add_training_flags(*command);
  options->flags.add_pipeline_flags(*command);
  command->option_defaults()->group("Links and planning");
  add_levels_flag(*command, options->levels);
  command->add_flag("--calibrate", options->calibrate,
                    "Measure the links between ranks (about a second) instead of using the cached rates");
  command
      ->add_option(
          "--plan", options->plan,
          "How a budget chooses K-FAC's distribution: auto (by simulated steps, on the CPU) or formula (by bytes)")
      ->type_name("NAME")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "formula"}));
  add_allow_flag(*command, options->allowed);
  add_comm_timeout_flag(*command, options->comm_timeout_seconds);
  add_output_flags(*command, *options);
  command->footer(
      "Example: mpirun -np 2 --bind-to none spillway train --data phantoms --budget 50% --kfac --report out");
  return [options, command] { return train_command(*options, *command); };
}

}  // namespace spillway::tools
