#include "tools/allreduce_launches.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>
#include <system_error>

#include "core/error.h"
#include "tools/worker.h"

extern char** environ;

namespace spillway::tools {
namespace {

using nlohmann::json;

/// A folder that goes with the benchmark.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "spillway-bench-XXXXXX").string();
    if (!::mkdtemp(name.data())) throw std::system_error(errno, std::generic_category(), "mkdtemp");
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

void run(std::vector<std::string> command) {
  std::vector<char*> argv;
  for (std::string& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t child = -1;
  if (const int error = ::posix_spawnp(&child, argv[0], nullptr, nullptr, argv.data(), environ))
    throw std::system_error(error, std::generic_category(), "cannot start " + command[0]);
  int status = 0;
  if (::waitpid(child, &status, 0) < 0) throw std::system_error(errno, std::generic_category(), "waitpid");
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    throw std::runtime_error(str(command[0], " ended with ", WIFEXITED(status) ? WEXITSTATUS(status) : -1,
                                 ": what the ranks said is above"));
}

/// What one kind of launch is called with, and how its rows are renamed.
struct Kind {
  std::string name;  // of its mpi rows
  std::vector<std::string> parameters;
  bool mpi_only = false;
};

std::vector<Kind> kinds(bool forced) {
  std::vector<Kind> kinds{{"mpi", {}, false}};
  const auto force = [&](const char* name, const char* number) {
    kinds.push_back({name,
                     {"--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_allreduce_algorithm", number},
                     true});
  };
  if (forced) {
    force("mpi-ring", "4");
    force("mpi-rabenseifner", "6");
  }
  return kinds;
}

json launch(const LaunchOptions& options, const Kind& kind, const std::vector<std::string>& arguments,
            const std::filesystem::path& file) {
  std::vector<std::string> command = options.launcher;
  command.insert(command.end(), {"-np", std::to_string(options.ranks)});
  command.insert(command.end(), kind.parameters.begin(), kind.parameters.end());
  command.push_back(std::filesystem::read_symlink("/proc/self/exe").string());
  command.insert(command.end(), arguments.begin(), arguments.end());
  if (kind.mpi_only) command.push_back("--mpi-only");
  command.insert(command.end(), {"--worker-json", file.string()});
  run(command);
  json result = json::parse(std::ifstream(file));
  for (json& row : result["rows"])
    if (row["algorithm"] == "mpi") row["algorithm"] = kind.name;
  return result;
}

/// The times of one size and algorithm in all launches, as one row.
json merge(const std::vector<json>& launches) {
  json row = launches.front();
  std::vector<double> seconds, in_place, predicted;
  int64_t wrong = 0, in_place_wrong = 0;
  for (const json& one : launches) {
    seconds.push_back(one["seconds"]);
    in_place.push_back(one["in_place_seconds"]);
    if (one.contains("predicted_seconds")) predicted.push_back(one["predicted_seconds"]);
    wrong += one["wrong"].get<int64_t>();
    in_place_wrong += one["in_place_wrong"].get<int64_t>();
  }
  std::sort(seconds.begin(), seconds.end());
  const auto p95 = static_cast<size_t>(std::ceil(0.95 * static_cast<double>(seconds.size()))) - 1;
  row.update({{"seconds", median(seconds)},
              {"in_place_seconds", median(in_place)},
              {"min_seconds", seconds.front()},
              {"p95_seconds", seconds[p95]},
              {"wrong", wrong},
              {"in_place_wrong", in_place_wrong}});
  if (predicted.empty()) return row;
  row["predicted_seconds"] = median(predicted);
  for (const json& one : launches) {
    json& kept = row["by_launch"].emplace_back();
    for (const char* key : {"plan", "chunk_bytes", "predicted_seconds", "seconds", "in_place_seconds"})
      kept[key] = one[key];
  }
  return row;
}

}  // namespace

json run_launches(const LaunchOptions& options, const std::vector<std::string>& arguments) {
  const Folder folder;
  json all;
  std::vector<std::pair<int64_t, std::string>> order;
  std::map<std::pair<int64_t, std::string>, std::vector<json>> rows;
  std::map<int64_t, std::vector<double>> bounds;
  for (int number = 0; number < options.launches; ++number)
    for (const Kind& kind : kinds(options.forced)) {
      json result = launch(options, kind, arguments, folder.path() / "launch.json");
      for (json& row : result["rows"]) {
        const std::pair key{row["bytes"].get<int64_t>(), row["algorithm"].get<std::string>()};
        if (!rows.contains(key)) order.push_back(key);
        if (!row["bound_seconds"].is_null()) bounds[key.first].push_back(row["bound_seconds"]);
        rows[key].push_back(std::move(row));
      }
      if (all.is_null()) all = result;
      if (!kind.mpi_only) all["costs_by_launch"].push_back(result["costs"]);
    }
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  all["rows"] = json::array();
  for (const auto& key : order) {
    json& row = all["rows"].emplace_back(merge(rows[key]));
    if (!row["bound_seconds"].is_null()) row["bound_seconds"] = median(bounds[key.first]);
  }
  all["launches"] = options.launches;
  return all;
}

}  // namespace spillway::tools
