// spillway bench allreduce: the allreduce by levels against the installed MPI's, a flat ring and a leader, and against
// the bound. Under mpirun it measures one launch; with --ranks it launches itself, several times.
#include "tools/bench_allreduce.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/bytes.h"
#include "core/error.h"
#include "ddl/mpi.h"
#include "runtime/report_files.h"
#include "tools/allreduce_launches.h"
#include "tools/allreduce_plot.h"
#include "tools/allreduce_table.h"
#include "tools/allreduce_trial.h"
#include "tools/allreduce_values.h"
#include "tools/json_file.h"
#include "tools/levels_flag.h"

namespace spillway::tools {
namespace {

using nlohmann::json;

struct Options {
  std::vector<std::string> sizes{"64KiB", "256KiB", "1MiB", "4MiB", "16MiB"};
  TrialOptions trial;
  LaunchOptions launches;
  std::string launcher = "mpirun";
  bool no_forced = false, explain = false;
  std::string json_file, plot_file, worker_json;
};

std::vector<std::string> words(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream stream(text);
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

int conclude(const Options& options, json result) {
  complete(result);
  print(result);
  if (options.explain) print_explanations(result);
  if (!options.json_file.empty()) write_json(result, options.json_file);
  if (!options.plot_file.empty()) {
    report::PendingFile plot(options.plot_file, draw_plot(result));
    plot.commit();
  }
  for (const json& row : result["rows"])
    if (row["wrong"] != 0) throw std::runtime_error("a result is wrong");
  return kOk;
}

void read_sizes(Options& options) {
  const std::string& type = options.trial.type;
  const int64_t element_bytes = ddl::element_bytes(element_named(type));
  for (const std::string& size : options.sizes) {
    const int64_t bytes = parse_bytes(size);
    if (bytes < element_bytes || bytes % element_bytes != 0)
      throw BadRequest(
          str("--sizes: ", size, "; allowed: whole elements of ", type, ", ", element_bytes, " bytes and more"));
    options.trial.sizes.push_back(bytes);
  }
}

/// What a launch of this benchmark is called with.
std::vector<std::string> launch_arguments(const Options& options) {
  const TrialOptions& trial = options.trial;
  std::string sizes;
  for (const int64_t bytes : trial.sizes) sizes += str(sizes.empty() ? "" : ",", bytes);
  std::vector<std::string> arguments{"bench", "allreduce", "--sizes", sizes, "--type", trial.type, "--op", trial.op};
  arguments.insert(arguments.end(), {"--repeats", std::to_string(trial.repeats)});
  arguments.insert(arguments.end(), {"--comm-timeout", str(trial.comm_timeout_seconds)});
  arguments.insert(arguments.end(), {"--levels", trial.levels, "--device", trial.device});
  if (trial.keep_order) arguments.push_back("--deterministic");
  return arguments;
}

int bench_allreduce(Options& options) {
  read_sizes(options);
  const std::string& device = options.trial.device;
  const bool on_cards = device == "cuda" || device.starts_with("cuda:");
  if (!on_cards && device != "cpu") throw BadRequest(str("--device is '", device, "'; allowed is cpu, cuda or cuda:N"));
  if (on_cards && options.explain)
    throw BadRequest("--explain: of cards' levels nothing is known; allowed: --device cpu");
  const bool by_mpi = ddl::MpiRuntime::reduces(element_named(options.trial.type), reduction_named(options.trial.op));
  if (options.trial.mpi_only && !by_mpi)
    throw BadRequest(str("--mpi-only: MPI has no ", options.trial.op, " of ", options.trial.type));
  if (ddl::launched_by_mpi()) {
    ddl::MpiRuntime mpi;
    const json result = run_trial(mpi, options.trial);
    if (result.is_null()) return kOk;
    if (options.worker_json.empty()) return conclude(options, result);
    write_json(result, options.worker_json);
    return kOk;
  }
  if (options.launches.ranks < 1)
    throw BadRequest("bench allreduce: start it with mpirun, or say --ranks N to let it do that, several times");
  options.launches.launcher = words(options.launcher);
  options.launches.forced = !options.no_forced && by_mpi && !on_cards;
  if (options.launches.launcher.empty()) throw BadRequest("--launcher is empty; allowed: a command such as mpirun");
  return conclude(options, run_launches(options.launches, launch_arguments(options)));
}

}  // namespace

Run add_bench_allreduce(CLI::App& bench) {
  auto options = std::make_shared<Options>();
  CLI::App* command = bench.add_subcommand(
      "allreduce", "The allreduce by levels against the installed MPI's, a flat ring and a leader, and the bound");
  command->add_option("--sizes", options->sizes, "Bytes of the vectors")->delimiter(',')->capture_default_str();
  command->add_option("--type", options->trial.type, "float32, float64, float16, bfloat16, int32 or int64")
      ->capture_default_str();
  command->add_option("--op", options->trial.op, "sum, average, max or min")->capture_default_str();
  add_levels_flag(*command, options->trial.levels);
  command
      ->add_option(
          "--device", options->trial.device,
          "cpu; cuda, the card of each rank's place on its host; cuda:N, the same card for all ranks of a host")
      ->capture_default_str();
  command->add_option("--repeats", options->trial.repeats, "Times that each size is summed in each way, in turn")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_flag("--deterministic", options->trial.keep_order,
                    "Only plans whose sums do not depend on size and algorithm");
  command->add_option("--comm-timeout", options->trial.comm_timeout_seconds, "Seconds to wait for another rank")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option("--ranks", options->launches.ranks, "Launch so many ranks, where mpirun has not")
      ->check(CLI::PositiveNumber);
  command->add_option("--launches", options->launches.launches, "Fresh launches, of which medians are taken")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option("--launcher", options->launcher, "The command that launches, with its arguments, in quotes")
      ->capture_default_str();
  command->add_flag("--no-forced", options->no_forced,
                    "Without launches that force the installed MPI's ring and Rabenseifner (Open MPI only)");
  command->add_flag("--explain", options->explain,
                    "Print what each level did for each size, and how long that should have taken and took");
  command->add_option("--json", options->json_file, "File for the results");
  command->add_option("--plot", options->plot_file, "File for a picture (SVG): bandwidth by size");
  command->add_flag("--mpi-only", options->trial.mpi_only)->group("");
  command->add_option("--worker-json", options->worker_json)->group("");
  command->footer("Example: spillway bench allreduce --ranks 4 --launches 3 --sizes 1MiB,16MiB --json allreduce.json");
  return [options] { return bench_allreduce(*options); };
}

}  // namespace spillway::tools
