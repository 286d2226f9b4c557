#include "tools/link_costs.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.h"
#include "core/topology.h"
#include "ddl/agreement.h"
#include "ddl/calibration.h"
#include "ddl/collectives.h"
#include "ddl/mpi.h"

namespace spillway::tools {
namespace {

using nlohmann::json;

/// The names of all ranks' hosts.
std::vector<std::string> host_names(ddl::Communicator& comm) {
  std::array<char, 64> own{};
  const std::string name = discover_host().hostname;
  std::copy_n(name.begin(), std::min(name.size(), own.size() - 1), own.begin());
  std::vector<std::array<char, 64>> all(static_cast<size_t>(comm.size()));
  ddl::allgather(comm, std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all)));
  std::vector<std::string> names;
  for (const auto& one : all) names.emplace_back(one.data());
  return names;
}

/// All that decides what the links do, as far as ranks can tell.
json description_of(const ddl::Communicator& comm, const std::vector<std::string>& hosts) {
  return {{"hosts", hosts}, {"levels", comm.levels().labels()}, {"mpi", ddl::MpiRuntime::library()}};
}

std::string file_name(const json& description) {
  uint64_t hash = ddl::kHashSeed;
  for (const char letter : description.dump()) hash = ddl::hash_in(hash, static_cast<uint64_t>(letter));
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "%016llx.json", static_cast<unsigned long long>(hash));
  return name.data();
}

json to_json(const ddl::Costs& costs) {
  json levels = json::array();
  for (const auto& link : costs.levels)
    levels.push_back({{"latency_seconds", link.latency_seconds},
                      {"message_seconds", link.message_seconds},
                      {"bytes_per_second", link.bytes_per_second},
                      {"piece_bytes", link.piece_bytes},
                      {"by_cores", link.by_cores}});
  return {{"levels", levels}, {"reduce_seconds_per_byte", costs.reduce_seconds_per_byte}};
}

ddl::Costs from_json(const json& all) {
  ddl::Costs costs{.reduce_seconds_per_byte = all.at("reduce_seconds_per_byte")};
  for (const json& link : all.at("levels"))
    costs.levels.push_back({link.at("latency_seconds"), link.at("message_seconds"), link.at("bytes_per_second"),
                            link.at("piece_bytes"), link.at("by_cores")});
  return costs;
}

/// Nothing where there is no such file, or none that can be used, which `origin` then says.
std::optional<ddl::Costs> read(const std::filesystem::path& file, const json& description, const ddl::Levels& levels,
                               std::string& origin) {
  std::ifstream in(file);
  if (!in) return std::nullopt;
  try {
    const json all = json::parse(in);
    if (all.at("of") != description) return std::nullopt;  // another one's with the same hash
    ddl::Costs costs = from_json(all.at("costs"));
    costs.validate(levels);
    origin = str("remembered in ", file.string());
    return costs;
  } catch (const std::exception& error) {
    origin = str("measured, since ", file.string(), " cannot be used: ", error.what());
    return std::nullopt;
  }
}

void write(const std::filesystem::path& file, const json& description, const ddl::Costs& costs, std::string& origin) {
  std::error_code failed;
  std::filesystem::create_directories(file.parent_path(), failed);
  const auto fresh = std::filesystem::path(file).concat(".new");
  std::ofstream out(fresh);
  out << json{{"of", description}, {"costs", to_json(costs)}}.dump(2) << "\n";
  out.close();
  if (out) std::filesystem::rename(fresh, file, failed);
  if (!out || failed) origin += str("; not remembered: ", file.string(), " cannot be written");
}

/// Rank 0's, or nothing.
std::optional<ddl::Costs> share(ddl::Communicator& comm, const std::optional<ddl::Costs>& own) {
  std::vector<double> numbers(2 + 5 * static_cast<size_t>(comm.levels().count()));
  if (own) {
    numbers = {1, own->reduce_seconds_per_byte};
    for (const auto& link : own->levels)
      numbers.insert(numbers.end(), {link.latency_seconds, link.message_seconds, link.bytes_per_second,
                                     link.piece_bytes == ddl::kWhole ? -1 : static_cast<double>(link.piece_bytes),
                                     static_cast<double>(link.by_cores)});
  }
  ddl::broadcast(comm, std::as_writable_bytes(std::span(numbers)), 0);
  if (numbers[0] == 0) return std::nullopt;
  ddl::Costs costs{.reduce_seconds_per_byte = numbers[1]};
  for (size_t i = 2; i < numbers.size(); i += 5)
    costs.levels.push_back({numbers[i], numbers[i + 1], numbers[i + 2],
                            numbers[i + 3] < 0 ? ddl::kWhole : static_cast<int64_t>(numbers[i + 3]),
                            numbers[i + 4] != 0});
  return costs;
}

}  // namespace

std::filesystem::path link_cache_folder() {
  const auto value = [](const char* name) {
    const char* text = std::getenv(name);
    return std::filesystem::path(text ? text : "");
  };
  if (const auto cache = value("SPILLWAY_CACHE"); !cache.empty()) return cache / "links";
  if (const auto cache = value("XDG_CACHE_HOME"); !cache.empty()) return cache / "spillway" / "links";
  if (const auto home = value("HOME"); !home.empty()) return home / ".cache" / "spillway" / "links";
  return {};
}

std::string describe(const LinkCosts& links) {
  std::string text = str("links between ranks, ", links.origin, ":");
  for (size_t level = 0; level < links.costs.levels.size(); ++level) {
    std::array<char, 80> line{};
    const auto& link = links.costs.levels[level];
    std::snprintf(line.data(), line.size(), "%s level %zu %.3g us, %.3g GB/s", level ? ";" : "", level + 1,
                  1e6 * link.latency_seconds, link.bytes_per_second / 1e9);
    text += line.data();
  }
  return text;
}

LinkCosts link_costs(ddl::Communicator& comm, const std::filesystem::path& folder, bool anew) {
  LinkCosts result{.origin = "measured"};
  const json description = description_of(comm, host_names(comm));
  const std::filesystem::path file = folder.empty() ? folder : folder / file_name(description);
  std::optional<ddl::Costs> known;
  if (comm.rank() == 0 && !anew && !file.empty()) known = read(file, description, comm.levels(), result.origin);
  known = share(comm, known);
  if (known) {
    result.costs = *known;
    return result;
  }
  result.costs = ddl::calibrate(comm);
  if (comm.rank() == 0 && !file.empty()) write(file, description, result.costs, result.origin);
  return result;
}

}  // namespace spillway::tools
