#include "benchmarks/allreduce/launches.h"

#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <tuple>

#include "benchmarks/allreduce/gloo.h"
#include "benchmarks/allreduce/launcher.h"
#include "core/error.h"
#include "core/median.h"
#include "tools/cli/interrupts.h"
#include "tools/cli/launch_result.h"
#include "tools/cli/process.h"
#include "tools/ddlrun/shell.h"

namespace spillway::tools {
namespace {

using nlohmann::json;

/// Returns the file of a launcher. Throws std::system_error when PATH leads to none.
std::string launcher_file(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::string file = ddlrun::find_program(name, path ? path : ddlrun::kDefaultPath);
  if (file.empty()) throw std::system_error(ENOENT, std::generic_category(), "cannot start " + name);
  return file;
}

/// Runs `command` and hands on each line that it prints. Waits for its end, and returns its status.
int run(const std::vector<std::string>& command, const std::function<void(const std::string& line)>& on_line) {
  Pipe pipe;
  const pid_t child = start_process(launcher_file(command.front()), command, {.out = pipe.to.number()});
  pipe.to.close();
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> out(::fdopen(pipe.from.release(), "r"), ::fclose);
  char* line = nullptr;
  size_t room = 0;
  for (ssize_t size; (size = ::getline(&line, &room, out.get())) > 0;) on_line(std::string(line, size));
  std::free(line);
  int status = 0;
  if (::waitpid(child, &status, 0) < 0) throw std::system_error(errno, std::generic_category(), "waitpid");
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/// A kind of launch: its command, and the name that its rows get.
struct Kind {
  std::string name;                     ///< new name of its mpi rows
  std::vector<std::string> parameters;  ///< parameters of the launcher
  std::vector<std::string> command;     ///< command of a rank
  bool is_main = false;
};

/// Returns the command that runs this program with such arguments, as a rank.
std::vector<std::string> own_command(const std::vector<std::string>& arguments) {
  std::vector<std::string> command{std::filesystem::read_symlink("/proc/self/exe").string()};
  command.insert(command.end(), arguments.begin(), arguments.end());
  command.push_back("--for-launcher");
  return command;
}

std::vector<Kind> kinds(const LaunchOptions& options, const std::optional<ddlrun::Launcher>& launcher) {
  std::vector<Kind> kinds{{"mpi", {}, own_command(options.arguments), true}};
  if (!options.forced_arguments.empty() && launcher && launcher->mpi == ddlrun::Mpi::open_mpi) {
    const auto forced = own_command(options.forced_arguments);
    kinds.push_back({"mpi-ring", forced_allreduce(*launcher, "4"), forced});
    kinds.push_back({"mpi-rabenseifner", forced_allreduce(*launcher, "6"), forced});
  }
  return kinds;
}

/// Runs one launch and returns its result; null when an interrupt ended it.
json launch(std::vector<std::string> command, int ranks, const Kind& kind) {
  const auto append = [&](const std::vector<std::string>& words) {
    command.insert(command.end(), words.begin(), words.end());
  };
  append({"-n", std::to_string(ranks)});
  append(kind.parameters);
  append(kind.command);
  json result;
  const int code = run(command, [&](const std::string& line) {
    if (auto found = result_in(line))
      result = std::move(*found);
    else
      std::fputs(line.c_str(), stderr);
  });
  if (interrupted()) return nullptr;
  if (code != 0) throw std::runtime_error(str(command[0], " ended with ", code, ": what the ranks said is above"));
  if (result.is_null()) throw std::runtime_error(str(command[0], " ended well, but rank 0 has printed no results"));
  for (json& row : result["rows"])
    if (row["algorithm"] == "mpi") row["algorithm"] = kind.name;
  return result;
}

/// A row's problem and algorithm.
using Key = std::tuple<std::string, std::string, std::string, int64_t, std::string>;

Key key_of(const json& row) {
  return {row["collective"].get<std::string>(), row["type"].get<std::string>(), row["op"].dump(),
          row["bytes"].get<int64_t>(), row["algorithm"].get<std::string>()};
}

std::vector<double> sorted(const std::vector<json>& rows, const std::function<double(const json&)>& number) {
  std::vector<double> numbers;
  for (const json& row : rows) numbers.push_back(number(row));
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

std::vector<double> sorted(const std::vector<json>& rows, const char* key) {
  return sorted(rows, [&](const json& row) { return row[key].get<double>(); });
}

json all_of(const std::vector<json>& rows, const char* key) {
  json all = json::array();
  for (const json& row : rows) all.insert(all.end(), row[key].begin(), row[key].end());
  return all;
}

int64_t sum_of(const std::vector<json>& rows, const char* key) {
  int64_t sum = 0;
  for (const json& row : rows) sum += row[key].get<int64_t>();
  return sum;
}

/// Merges the times of one problem and algorithm in all launches into one row.
json merge(const std::vector<json>& launches) {
  json row = launches.front();
  const auto seconds = sorted(launches, "seconds");
  const auto p95 = static_cast<size_t>(std::ceil(0.95 * static_cast<double>(seconds.size()))) - 1;
  row.update({{"seconds", median(seconds)},
              {"in_place_seconds", median(sorted(launches, "in_place_seconds"))},
              {"min_seconds", seconds.front()},
              {"p95_seconds", seconds[p95]},
              {"call_seconds", all_of(launches, "call_seconds")},
              {"in_place_call_seconds", all_of(launches, "in_place_call_seconds")},
              {"wrong", sum_of(launches, "wrong")},
              {"in_place_wrong", sum_of(launches, "in_place_wrong")}});
  if (!row["back_to_back"].is_null())
    for (const char* key : {"seconds", "in_place_seconds"})
      row["back_to_back"][key] =
          median(sorted(launches, [&](const json& one) { return one["back_to_back"][key].get<double>(); }));
  if (row.contains("predicted_seconds")) {
    row["predicted_seconds"] = median(sorted(launches, "predicted_seconds"));
    for (const json& one : launches) {
      json& kept = row["by_launch"].emplace_back();
      for (const char* key : {"plan", "chunk_bytes", "predicted_seconds", "seconds", "in_place_seconds"})
        kept[key] = one[key];
    }
  }
  return row;
}

/// The rows of all launches by problem and algorithm; problems are in the order of the first launch.
class Rows {
 public:
  void add(json row) {
    const Key key = key_of(row);
    auto problem = key;
    std::get<4>(problem).clear();
    places_.try_emplace(problem, places_.size());
    if (!rows_.contains(key)) order_.emplace_back(places_[problem], key);
    if (!row["bound_seconds"].is_null()) bounds_[problem].push_back(row["bound_seconds"]);
    rows_[key].push_back(std::move(row));
  }

  json merged() {
    std::stable_sort(order_.begin(), order_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    json all = json::array();
    for (const auto& [place, key] : order_) {
      json& row = all.emplace_back(merge(rows_[key]));
      auto problem = key;
      std::get<4>(problem).clear();
      if (bounds_.contains(problem)) row["bound_seconds"] = median(bounds_[problem]);
    }
    return all;
  }

 private:
  std::map<Key, size_t> places_;
  std::vector<std::pair<size_t, Key>> order_;
  std::map<Key, std::vector<json>> rows_;
  std::map<Key, std::vector<double>> bounds_;
};

}  // namespace

json run_launches(const LaunchOptions& options) {
  const auto launcher = ask_launcher(options.launcher.front());
  const auto command = completed_launcher(options.launcher, launcher, ::geteuid() == 0);
  json all, gloo = nullptr;
  Rows rows;
  const auto take = [&](const Kind& kind) {
    json result = launch(command, options.ranks, kind);
    if (result.is_null()) return false;
    for (json& row : result["rows"]) rows.add(std::move(row));
    if (all.is_null()) all = result;
    if (kind.is_main) all["costs_by_launch"].push_back(result["costs"]);
    if (kind.name == "gloo") gloo = {{"python", options.gloo_python}, {"torch", result["torch"]}};
    return true;
  };
  for (int number = 0; number < options.launches; ++number) {
    for (const Kind& kind : kinds(options, launcher))
      if (!take(kind)) return nullptr;
    if (options.gloo_python.empty()) continue;
    const auto of_gloo =
        gloo_command(options.gloo_python, options.gloo_options, all["ranks"], options.comm_timeout_seconds);
    if (!take({"gloo", {}, of_gloo})) return nullptr;
  }
  all["rows"] = rows.merged();
  all["launches"] = options.launches;
  all["gloo"] = gloo;
  all["launcher"] = {{"command", command}, {"version", launcher ? json(launcher->version) : json(nullptr)}};
  return all;
}

}  // namespace spillway::tools
