#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/device/device.h"
#include "core/device/open_device.h"
#include "core/error.h"
#include "ddl/comm/collectives.h"
#include "ddl/comm/mpi.h"
#include "ddl/torch/gpu_backend.h"
#include "runtime/report/report.h"
#include "runtime/report/result_json.h"
#include "runtime/training/deterministic.h"
#include "runtime/training/run_context.h"
#include "runtime/training/train.h"
#include "tools/bench/stock.h"
#include "tools/cli/calibration_cache.h"
#include "tools/cli/command.h"
#include "tools/cli/launch.h"
#include "tools/cli/levels_flag.h"
#include "tools/cli/same_options.h"
#include "tools/cli/train_flags.h"
#include "tools/spillway/progress.h"

namespace spillway::tools {
namespace {

TrainRequests requests;  // signal handlers reach nothing else

/// The first Ctrl-C ends the run after the current step; the second one ends the process.
void end_after_this_step() {
  struct sigaction action {};
  action.sa_handler = [](int) { requests.stop = true; };
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

/// Asks for a checkpoint on SIGUSR1, which batch systems can send ahead of their time limit. Called at the command's
/// start, because the signal ends a process that has no handler for it.
void save_when_asked() {
  struct sigaction action {};
  action.sa_handler = [](int) { requests.checkpoint = true; };
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGUSR1, &action, nullptr);
}

/// A file that may not grow is an error with a name then, and not the end of the process.
void report_file_size_limits() {
  std::signal(SIGXFSZ, SIG_IGN);
}

struct Options {
  TrainFlags flags;
  std::string json, report, levels = "hosts";
  std::vector<std::string> compare;
  double comm_timeout_seconds = 60;
  bool calibrate = false;
  bool quiet = false;
};

/// Whoever started several ranks on a host may have bound each to one core; each takes its fair share instead. A sum's
/// last bits depend on how many threads split it, so all ranks use as many as the rank with the fewest CPUs has.
void take_share_of_host(ddl::Communicator& comm) {
  const auto cpus = static_cast<int>(take_share_of_cores(comm).size());
  std::vector<int> all(static_cast<size_t>(comm.size()));
  ddl::allgather(comm, std::as_bytes(std::span(&cpus, 1)), std::as_writable_bytes(std::span(all)));
  at::set_num_threads(*std::min_element(all.begin(), all.end()));
}

/// `adam`, `adam@0.01`, `unlimited`: the run to set beside, as a change to the main run's options.
TrainOptions compared_options(TrainOptions options, const std::string& what) {
  options.checkpoint.clear();
  options.checkpoint_every = 0;
  options.resume = false;
  const std::string kind = what.substr(0, what.find('@'));
  if (kind == "unlimited" && kind == what) {
    options.budget = {};
    options.choose_grad_worker_frac = false;
    options.steps = std::min<int64_t>(options.steps, 5);
    options.epochs = 0;
    options.validate_every = options.steps;
    return options;
  }
  if (kind != "adam") throw BadRequest(str("--compare is '", what, "'; allowed is unlimited, adam, adam@LR"));
  options.use_kfac = false;
  options.optimizer = "adam";
  options.lr = 5e-4;
  options.nesterov = false;
  if (kind != what) options.lr = std::strtod(what.c_str() + kind.size() + 1, nullptr);
  options.validate();
  return options;
}

/// A file that is there before hours of training, not after them. Leaves what exists alone.
void check_writable(const std::string& file) {
  const bool existed = std::filesystem::exists(file);
  std::ofstream out(file, std::ios::app);
  if (!out) throw std::system_error(errno, std::generic_category(), "cannot write '" + file + "'");
  if (!existed) std::filesystem::remove(file);
}

void write_json(const std::string& file, const TrainResult& result, const std::vector<NamedResult>& others) {
  nlohmann::json json = to_json(result);
  for (const NamedResult& other : others) json["compared"][other.name] = to_json(other.result);
  std::ofstream out(file);
  out << json.dump(2) << "\n";
  out.flush();
  if (!out) throw std::system_error(errno ? errno : EIO, std::generic_category(), "cannot write '" + file + "'");
}

int train_command(Options& options, const CLI::App& command) {
  save_when_asked();
  std::optional<ddl::MpiRuntime> mpi;
  std::shared_ptr<ddl::Communicator> world;
  const ddl::CommOptions of_comm = comm_options(options.comm_timeout_seconds);
  if (ddl::launched_by_mpi()) {
    mpi.emplace(of_comm.deadline);
    world = mpi->world(of_comm);
    require_same_options(command, *world);
    take_share_of_host(*world);
  } else {
    check_levels_alone(options.levels);
  }
  const bool speaks = !world || world->rank() == 0;
  const int world_size = world ? world->size() : 1;
  TrainOptions train_options = options.flags.resolve(world_size);
  if (world_size > 1 && train_options.device == "cuda") train_options.device = str("cuda:", world->local_rank());
  std::vector<TrainOptions> compared;
  for (const std::string& what : options.compare) compared.push_back(compared_options(train_options, what));

  use_deterministic_algorithms(train_options.deterministic, train_options.device != "cpu");
  Device& device = open_device(train_options.device);
  ddl::Comm comm;
  LinkCosts links;
  if (world) world = with_levels(*mpi, std::move(world), of_comm, options.levels, bus_id_of(device));
  if (world_size > 1) {
    links = link_costs(*world, link_cache_folder(), options.calibrate);
    comm = ddl::make_comm(std::move(world), links.costs);
  }
  RunContext context = make_context(train_options, comm);
  end_after_this_step();
  report_file_size_limits();

  Progress progress(speaks && !options.quiet, ddl::launched_by_mpi(), device.ledger());
  progress.before_start([&] {
    if (speaks && !options.json.empty()) check_writable(options.json);
    if (speaks && !options.report.empty()) check_report_dir(options.report);
  });
  if (comm) progress.on_decision(describe(links));
  if (comm && device.torch_device().is_cuda()) {
    (void)comm->cards->levels(device.torch_device());
    progress.on_decision(str("tensors on cards: ", comm->cards->decision()));
  }
  TrainResult result = train(context, progress, &requests);
  if (speaks && result.allreduce) {
    const AllreduceSummary& allreduce = *result.allreduce;
    const std::string said = forget_if_wrong(links, allreduce.bound_seconds, allreduce.seconds_per_step);
    if (!said.empty()) progress.on_decision(said);
  }
  std::vector<NamedResult> others;
  bool stopped = result.interrupted;
  for (size_t i = 0; i < compared.size() && !stopped; ++i) {
    progress.heading(str("compared with ", options.compare[i]));
    RunContext other = context;
    other.options = compared[i];
    other.start = {};
    if (result.kfac) {
      other.options.kfac.strategy = kfac::strategy_named(result.kfac->strategy);
      other.options.kfac.grad_worker_frac = result.kfac->grad_worker_frac;
    }
    if (other.options.budget.kind != BudgetRequest::Kind::none)
      other.options.budget = {.kind = BudgetRequest::Kind::bytes, .bytes = result.budget_bytes};
    others.push_back({options.compare[i], train(other, progress, &requests)});
    stopped = others.back().result.interrupted;
  }
  if (speaks) {
    if (!options.quiet) print_summary(result, others);
    if (!options.json.empty()) write_json(options.json, result, others);
    if (!options.report.empty()) {
      write_report(options.report, result, others);
      std::printf("report: %s\n", (std::filesystem::absolute(options.report) / "report.html").c_str());
    }
  }
  if (stopped) {
    if (speaks) std::fprintf(stderr, "spillway: interrupted after step %zu\n", result.losses.size());
    return kInterrupted;
  }
  return kOk;
}

}  // namespace

Run add_train(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("train", "Trains a model under a byte budget; under mpirun, data-parallel");
  options->flags.add_model_flags(*command);
  options->flags.add_training_flags(*command);
  command
      ->add_option("--compare", options->compare,
                   "Runs to set beside the main one: unlimited (five steps without a "
                   "budget), adam, adam@LR (as many steps, the same budget)")
      ->delimiter(',');
  command->add_option("--report", options->report, "Folder for report.html and trace.json");
  command->add_option("--json", options->json, "File for the results");
  add_levels_flag(*command, options->levels);
  command->add_flag("--calibrate", options->calibrate,
                    "Measure the links between ranks anew, instead of what is remembered of these hosts");
  command->add_option("--comm-timeout", options->comm_timeout_seconds, "Seconds to wait for another rank")
      ->capture_default_str()
      ->check(CLI::Range(0.001, 86400.0));
  command->add_flag("--quiet", options->quiet, "Print errors only");
  command->footer(
      "Example: mpirun -np 2 --bind-to none spillway train --data phantoms --budget 50% --kfac --report out");
  return [options, command] { return train_command(*options, *command); };
}

}  // namespace spillway::tools
