// spillway bench allreduce: collectives by levels against the installed MPI's, and the allreduce also against a flat
// ring, a leader and the bound. Under mpirun it measures one launch; with --ranks it launches itself, several times.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "benchmarks/allreduce/gloo.h"
#include "benchmarks/allreduce/inputs.h"
#include "benchmarks/allreduce/launches.h"
#include "benchmarks/allreduce/plot.h"
#include "benchmarks/allreduce/sweep.h"
#include "benchmarks/allreduce/table.h"
#include "benchmarks/allreduce/trial.h"
#include "benchmarks/commands/commands.h"
#include "core/bytes.h"
#include "core/error.h"
#include "ddl/comm/mpi.h"
#include "tools/cli/interrupts.h"
#include "tools/cli/launch.h"
#include "tools/cli/launch_result.h"
#include "tools/cli/levels_flag.h"
#include "tools/cli/numbers.h"
#include "tools/cli/same_options.h"
#include "tools/cli/write_json.h"
#include "tools/ddlrun/hosts.h"

namespace spillway::tools {
namespace {

using nlohmann::json;

struct Options {
  Sweep sweep;
  std::string types = "float32", ops = "sum", collectives = "allreduce", offset = "0", average;
  TrialOptions trial;
  LaunchOptions launches;
  std::string launcher = "mpirun";
  int cycles = 1;
  bool no_forced = false, explain = false, for_launcher = false;
  std::string json_file, plot_file;
};

void require_right(const json& result) {
  for (const json& row : result["rows"])
    if (row["wrong"] != 0) throw std::runtime_error("a result is wrong");
}

/// Prints and writes the results of one cycle.
void conclude(const Options& options, json result, int cycle) {
  result["step"] = step_of(options.sweep, options.trial.sizes.size());
  result["cycles"] = cycle;
  complete(result);
  if (options.cycles != 1) std::printf("# cycle %d\n", cycle);
  print(result);
  if (options.explain) print_explanations(result);
  if (!options.json_file.empty()) write_json(result, options.json_file);
  if (!options.plot_file.empty()) write_output(draw_plot(result), options.plot_file);
  require_right(result);
}

void read_offset(Options& options) {
  TrialOptions& trial = options.trial;
  trial.offset_bytes = parse_bytes(options.offset);
  for (const std::string& type : trial.types)
    if (const int64_t element = ddl::element_bytes(parse_element(type)); trial.offset_bytes % element != 0)
      throw BadRequest(
          str("--offset: ", options.offset, "; allowed: whole elements of ", type, ", ", element, " bytes each"));
}

/// Reads the flags that are given as text. Throws BadRequest.
void read(Options& options) {
  TrialOptions& trial = options.trial;
  trial.types = parse_types(options.types);
  trial.ops = parse_operations(options.ops);
  trial.collectives = parse_collectives(options.collectives);
  trial.sizes = sizes_of(options.sweep, trial.types);
  read_offset(options);
  if (options.average.empty()) return;
  (void)parse_average(options.average);
  trial.timing.average = trial.timing.back_to_back_average = options.average;
}

void refuse_what_cannot_be(const Options& options) {
  const std::string& device = options.trial.device;
  const bool on_gpus = device == "cuda" || device.starts_with("cuda:");
  if (!on_gpus && device != "cpu") throw BadRequest(str("--device is '", device, "'; allowed is cpu, cuda or cuda:N"));
  if (on_gpus && options.explain)
    throw BadRequest("--explain: of GPUs' levels nothing is known; allowed: --device cpu");
  if (on_gpus && !options.launches.gloo_python.empty())
    throw BadRequest("--gloo reduces vectors of the host; allowed: --device cpu");
  if (!options.plot_file.empty() && problems_of(options.trial).size() != options.trial.sizes.size())
    throw BadRequest("--plot draws one collective of one type and operation; allowed: one of each");
}

/// True when the installed MPI's allreduce is among the measured ways, so that its algorithms can be forced.
bool measures_mpi(const TrialOptions& trial) {
  const auto has = [](const std::vector<std::string>& names, const char* name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (!has(trial.collectives, "allreduce") || (!trial.ways.empty() && !has(trial.ways, "mpi"))) return false;
  const auto problems = problems_of(trial);
  return trial.device == "cpu" && std::any_of(problems.begin(), problems.end(), [](const Problem& problem) {
           return ddl::MpiRuntime::reduces(problem.element, problem.reduction);
         });
}

/// Returns a launch's arguments of this benchmark; with `mpi_only` it measures the installed MPI's allreduce alone.
std::vector<std::string> launch_arguments(const Options& options, bool mpi_only) {
  const TrialOptions& trial = options.trial;
  std::string sizes;
  for (const int64_t bytes : trial.sizes) sizes += str(sizes.empty() ? "" : ",", bytes);
  std::vector<std::string> arguments{"bench", "allreduce"};
  const auto give = [&](const char* flag, const std::string& value) {
    if (!value.empty()) arguments.insert(arguments.end(), {flag, value});
  };
  give("--sizes", sizes);
  give("--type", options.types);
  give("--op", options.ops);
  give("--collective", mpi_only ? "allreduce" : options.collectives);
  give("--ways", mpi_only ? "mpi" : ddlrun::join(trial.ways, ","));
  give("--repeats", str(trial.timing.repeats));
  give("--warmup", str(trial.timing.warmup));
  give("--iterations", str(trial.timing.iterations));
  give("--average", options.average);
  give("--offset", str(trial.offset_bytes));
  give("--comm-timeout", str(trial.comm_timeout_seconds));
  give("--levels", trial.levels);
  give("--device", trial.device);
  if (trial.keep_order) arguments.push_back("--deterministic");
  return arguments;
}

/// Measures in one launch, of which this process is a rank.
int run_rank(const Options& options, const CLI::App& command) {
  const ddl::CommOptions of_comm = comm_options(options.trial.comm_timeout_seconds);
  ddl::MpiRuntime mpi(of_comm.deadline);
  auto world = mpi.world(of_comm);
  require_same_options(command, *world);
  Trial trial(mpi, std::move(world), options.trial);
  for (int cycle = 1; cycle <= options.cycles || options.cycles == 0; ++cycle) {
    const json result = trial.run(interrupted);
    if (options.for_launcher && !result.is_null()) {
      std::printf("%s\n", result_line(result).c_str());
      std::fflush(stdout);
    }
    if (!options.for_launcher && !result.is_null()) conclude(options, result, cycle);
    if (trial.was_interrupted()) break;
  }
  return kOk;
}

/// Measures in launches that this process starts.
int run_parent(Options& options) {
  LaunchOptions& launches = options.launches;
  launches.launcher = ddlrun::words_of(options.launcher);
  launches.arguments = launch_arguments(options, /*mpi_only=*/false);
  if (!options.no_forced && measures_mpi(options.trial)) launches.forced_arguments = launch_arguments(options, true);
  launches.comm_timeout_seconds = options.trial.comm_timeout_seconds;
  if (!launches.gloo_python.empty()) {
    launches.gloo_options = gloo_options(problems_of(options.trial), options.trial.timing);
    require_gloo(launches.gloo_python);
  }
  if (launches.launcher.empty()) throw BadRequest("--launcher is empty; allowed: a command such as mpirun");
  for (int cycle = 1; cycle <= options.cycles || options.cycles == 0; ++cycle) {
    const json result = run_launches(launches);
    if (!result.is_null()) conclude(options, result, cycle);
    if (!interrupted()) continue;
    if (result.is_null() && cycle == 1) throw std::runtime_error("interrupted before anything was measured");
    break;
  }
  return kOk;
}

int bench_allreduce(Options& options, const CLI::App& command) {
  read(options);
  refuse_what_cannot_be(options);
  const bool is_rank = ddl::launched_by_mpi();
  if (!is_rank && options.launches.ranks < 1)
    throw BadRequest("bench allreduce: start it with mpirun, or say --ranks N to let it do that, several times");
  if (is_rank && !options.launches.gloo_python.empty())
    throw BadRequest("--gloo is measured in launches of its own; allowed: with --ranks, where mpirun has not launched");
  const InterruptsNoted noted;
  return is_rank ? run_rank(options, command) : run_parent(options);
}

void add_size_flags(CLI::App& command, Options& options) {
  command.option_defaults()->group("Sizes");
  Sweep& sweep = options.sweep;
  command.add_option("--sizes", sweep.sizes, "Sizes of the whole vectors, with commas")
      ->type_name("SIZES")
      ->default_str("64KiB,256KiB,1MiB,4MiB,16MiB")
      ->delimiter(',');
  command
      .add_option("--begin", sweep.begin,
                  "Smallest size of a sweep, instead of --sizes; rounded down to whole elements")
      ->type_name("SIZE");
  command.add_option("--end", sweep.end, "Largest size of the sweep")->type_name("SIZE")->default_str("--begin");
  add_number(command, "--factor", sweep.factor, "Factor from each size to the next")->type_name("X")->default_str("2");
  command.add_option("--step", sweep.step, "Bytes from each size to the next, instead of --factor")->type_name("SIZE");
  command.add_option("--offset", options.offset, "Offset of each vector from a memory page's start; whole elements")
      ->type_name("SIZE")
      ->capture_default_str();
}

void add_problem_flags(CLI::App& command, Options& options) {
  command.option_defaults()->group("Collectives");
  command
      .add_option(
          "--collective", options.collectives,
          "Collectives: allreduce, reduce_scatter, all_gather or broadcast (from rank 0), several with commas, or all")
      ->type_name("NAMES")
      ->capture_default_str();
  command
      .add_option("--type", options.types,
                  "Element types: float32, float64, float16, bfloat16, int32 or int64, several with commas, or all")
      ->type_name("NAMES")
      ->capture_default_str();
  command.add_option("--op", options.ops, "Operations: sum, average, max or min, several with commas, or all")
      ->type_name("NAMES")
      ->capture_default_str();
  command
      .add_option("--ways", options.trial.ways,
                  "Implementations to measure: levels, mpi, ring, leader, tree, nccl, staged")
      ->type_name("NAMES")
      ->default_str("all")
      ->delimiter(',')
      ->check(CLI::IsMember({"levels", "mpi", "ring", "leader", "tree", "nccl", "staged"}).description(""));
  command
      .add_option("--device", options.trial.device,
                  "Device: cpu; cuda, each local rank's own GPU; cuda:N, one GPU for all ranks of a host")
      ->type_name("NAME")
      ->capture_default_str();
  command.add_flag("--deterministic", options.trial.keep_order,
                   "Use only plans whose sums do not depend on size and algorithm");
  add_levels_flag(command, options.trial.levels);
}

void add_timing_flags(CLI::App& command, Options& options) {
  command.option_defaults()->group("Timing");
  TimingOptions& timing = options.trial.timing;
  add_number(command, "--repeats", timing.repeats, "Isolated calls: a barrier before each, all implementations in turn")
      ->type_name("N")
      ->capture_default_str()
      ->check(at_least(1));
  add_number(command, "--iterations", timing.iterations, "Further calls back to back, timed together; 0: none")
      ->type_name("N")
      ->capture_default_str()
      ->check(at_least(0).description(""));
  add_number(command, "--warmup", timing.warmup, "Warmup calls of each kind, which are not measured")
      ->type_name("N")
      ->capture_default_str()
      ->check(at_least(0));
  command.add_option("--average", options.average, "How the ranks' times are reduced to one: rank0, mean, min or max")
      ->type_name("NAME")
      ->default_str("max of isolated calls, mean back to back");
  add_number(command, "--cycles", options.cycles,
             "Repeat the whole measurement N times, with a table each; 0: until interrupted or a result is wrong")
      ->type_name("N")
      ->capture_default_str()
      ->check(at_least(0).description(""));
  add_comm_timeout_flag(command, options.trial.comm_timeout_seconds);
}

void add_launch_flags(CLI::App& command, Options& options) {
  command.option_defaults()->group("Launches");
  add_number(command, "--ranks", options.launches.ranks, "Launch N ranks, where mpirun has not")
      ->type_name("N")
      ->check(at_least(1));
  add_number(command, "--launches", options.launches.launches, "Number of launches, of which medians are taken")
      ->type_name("N")
      ->capture_default_str()
      ->check(at_least(1));
  command.add_option("--launcher", options.launcher, "Launch command with its arguments, in quotes")
      ->type_name("CMD")
      ->capture_default_str();
  command.add_flag("--no-forced", options.no_forced,
                   "Skip launches that force Open MPI's ring and Rabenseifner allreduce algorithms");
  command
      .add_option("--gloo", options.launches.gloo_python,
                  "Also measure the gloo of this Python's torch, in separate launches")
      ->type_name("PYTHON")
      ->default_str("none");
  command.add_flag("--for-launcher", options.for_launcher)->group("");
}

void add_output_flags(CLI::App& command, Options& options) {
  command.option_defaults()->group("Output");
  command.add_flag("--explain", options.explain,
                   "Print each level's algorithm for each size, with its predicted and measured time");
  command.add_option("--json", options.json_file, "File for the results")->type_name("FILE")->default_str("none");
  command
      .add_option("--plot", options.plot_file,
                  "SVG file for a log-log plot of bandwidth by size, of one collective, type and operation")
      ->type_name("FILE")
      ->default_str("none");
}

}  // namespace

Run add_bench_allreduce(CLI::App& bench) {
  auto options = std::make_shared<Options>();
  CLI::App* command = bench.add_subcommand(
      "allreduce",
      "Measures collectives by levels against the installed MPI's; the allreduce also against others and the bound");
  add_size_flags(*command, *options);
  add_problem_flags(*command, *options);
  add_timing_flags(*command, *options);
  add_launch_flags(*command, *options);
  add_output_flags(*command, *options);
  command->footer(
      "Example: spillway bench allreduce --ranks 4 --launches 3 --begin 8 --end 16MiB --iterations 20 --json a.json");
  return [options, command] { return bench_allreduce(*options, *command); };
}

}  // namespace spillway::tools
