// spillway bench allreduce: the allreduce by levels against the installed MPI's, a flat ring and a leader, and against
// the bound. Under mpirun it measures one launch; with --ranks it launches itself, several times.
#include "tools/bench_allreduce.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/bytes.h"
#include "core/error.h"
#include "ddl/mpi.h"
#include "tools/allreduce_launches.h"
#include "tools/allreduce_trial.h"
#include "tools/json_file.h"

namespace spillway::tools {
namespace {

using nlohmann::json;

struct Options {
  std::vector<std::string> sizes{"64KiB", "256KiB", "1MiB", "4MiB", "16MiB"};
  TrialOptions trial;
  LaunchOptions launches;
  std::string launcher = "mpirun";
  bool no_forced = false;
  std::string json_file, worker_json;
};

std::vector<std::string> words(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream stream(text);
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

/// Adds what follows from the times: nccl-tests' bandwidths, and the share of the bound.
void complete(json& result) {
  const double ranks = result["world_size"];
  std::map<int64_t, double> mpi;
  for (const json& row : result["rows"])
    if (row["algorithm"] == "mpi") mpi[row["bytes"]] = row["seconds"];
  for (json& row : result["rows"]) {
    const double bytes = row["bytes"], seconds = row["seconds"], bound = row["bound_seconds"];
    row["algbw"] = bytes / seconds / 1e9;
    row["busbw"] = bytes / seconds / 1e9 * 2 * (ranks - 1) / ranks;
    row["percent_of_bound"] = bound / seconds * 100;
    row["mpi_seconds"] = mpi.contains(row["bytes"]) ? json(mpi[row["bytes"]]) : json(nullptr);
  }
}

void print(const json& result) {
  const double ranks = result["world_size"];
  std::printf("# %d ranks (%s), %s\n", result["world_size"].get<int>(), result["levels"].get<std::string>().c_str(),
              result["mpi"].get<std::string>().c_str());
  int level = 0;
  for (const json& link : result["costs"]["levels"])
    std::printf(
        "# level %d: %.1f us, %.2f us a further message, %.3f GB/s a link%s\n", ++level,
        1e6 * link["latency_seconds"].get<double>(), 1e6 * link["message_seconds"].get<double>(),
        link["bytes_per_second"].get<double>() / 1e9,
        link["piece_bytes"].is_null() ? "" : str(", in messages of ", format_bytes(link["piece_bytes"])).c_str());
  std::printf("#%51s %35s\n", "out of place", "in place");
  std::printf("#%11s %11s %8s %6s %10s %8s %8s %6s %10s %8s %8s %7s %8s %-16s %s\n", "size", "count", "type", "redop",
              "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw", "bound", "/mpi", "algorithm", "plan");
  std::printf("#%11s %11s %8s %6s %10s %8s %8s %6s %10s %8s %8s %7s\n", "(B)", "(elements)", "", "", "(us)", "(GB/s)",
              "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)", "(%)");
  for (const json& row : result["rows"]) {
    const double bytes = row["bytes"], in_place = row["in_place_seconds"], seconds = row["seconds"];
    const double algbw = bytes / in_place / 1e9;
    const std::string against = row["mpi_seconds"].is_null()
                                    ? "-"
                                    : str(static_cast<int>(1000 * seconds / row["mpi_seconds"].get<double>()) / 1000.0);
    std::printf("%12lld %11lld %8s %6s %10.1f %8.3f %8.3f %6lld %10.1f %8.3f %8.3f %7.1f %8s %-16s %s\n",
                row["bytes"].get<long long>(), row["bytes"].get<long long>() / 4, "float", "sum", 1e6 * seconds,
                row["algbw"].get<double>(), row["busbw"].get<double>(), row["wrong"].get<long long>(), 1e6 * in_place,
                algbw, algbw * 2 * (ranks - 1) / ranks, row["percent_of_bound"].get<double>(), against.c_str(),
                row["algorithm"].get<std::string>().c_str(), row.value("plan", std::string()).c_str());
  }
}

int conclude(const Options& options, json result) {
  complete(result);
  print(result);
  if (!options.json_file.empty()) write_json(result, options.json_file);
  bool right = true;
  for (const json& row : result["rows"]) right = right && row["wrong"] == 0;
  if (!right) throw std::runtime_error("a sum is wrong");
  return kOk;
}

int bench_allreduce(Options& options) {
  for (const std::string& size : options.sizes) {
    const int64_t bytes = parse_bytes(size);
    if (bytes < 4 || bytes % 4 != 0)
      throw BadRequest(str("--sizes: ", size, "; allowed: whole float32s, 4 bytes and more"));
    options.trial.sizes.push_back(bytes);
  }
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
  options.launches.forced = !options.no_forced;
  if (options.launches.launcher.empty()) throw BadRequest("--launcher is empty; allowed: a command such as mpirun");
  std::vector<std::string> arguments{"bench", "allreduce", "--repeats", std::to_string(options.trial.repeats),
                                     "--sizes"};
  std::string sizes;
  for (const int64_t bytes : options.trial.sizes) sizes += str(sizes.empty() ? "" : ",", bytes);
  arguments.push_back(sizes);
  if (!options.trial.levels.empty()) arguments.insert(arguments.end(), {"--levels", options.trial.levels});
  if (options.trial.keep_order) arguments.push_back("--deterministic");
  return conclude(options, run_launches(options.launches, arguments));
}

}  // namespace

Run add_bench_allreduce(CLI::App& bench) {
  auto options = std::make_shared<Options>();
  CLI::App* command = bench.add_subcommand(
      "allreduce", "The allreduce by levels against the installed MPI's, a flat ring and a leader, and the bound");
  command->add_option("--sizes", options->sizes, "Bytes of float32 to sum")->delimiter(',')->capture_default_str();
  command->add_option("--levels", options->trial.levels,
                      "Ranks per host x hosts x …, as in 4x2, or of each host, as in 4+2; else as discovered");
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
  command->add_option("--json", options->json_file, "File for the results");
  command->add_flag("--mpi-only", options->trial.mpi_only)->group("");
  command->add_option("--worker-json", options->worker_json)->group("");
  command->footer("Example: spillway bench allreduce --ranks 4 --launches 3 --sizes 1MiB,16MiB --json allreduce.json");
  return [options] { return bench_allreduce(*options); };
}

}  // namespace spillway::tools
