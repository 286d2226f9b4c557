#include "ddl/topology/link_cost_cache.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <system_error>

#include "core/error.h"
#include "core/hash.h"
#include "core/host/host_topology.h"
#include "core/host/processor.h"
#include "core/json_text.h"
#include "core/new_file.h"
#include "ddl/allreduce/calibration.h"
#include "ddl/comm/agreement.h"
#include "ddl/comm/collectives.h"
#include "ddl/comm/mpi.h"
#include "ddl/topology/link_cost_file.h"

extern char** environ;

namespace spillway::ddl {
namespace {

using nlohmann::json;

constexpr int64_t kMaxFile = 1 << 20;  // some 1000 hosts take 20 KB
/// Days for which costs are remembered, because hosts get other adapters and switches other neighbors.
constexpr int64_t kMaxDays = 30;
/// The ratio of bound to measured time above which the bound must be wrong.
constexpr double kWrong = 2;
/// Bytes of a host's or processor's name that are compared.
constexpr size_t kMaxName = 63;

/// Beginnings of the names of variables that choose networks and how MPI uses them. Open MPI's mpirun passes its --mca
/// on as OMPI_MCA_…, among other variables that differ in every launch.
constexpr const char* kNetworkVariables[] = {
    "OMPI_MCA_btl", "OMPI_MCA_pml", "OMPI_MCA_mtl", "OMPI_MCA_coll", "OMPI_MCA_mpi_", "UCX_", "I_MPI_FABRICS",
    "I_MPI_OFI",    "FI_",          "PSM2_",        "MPICH_",        "MPIR_CVAR_",    "MV2_"};

/// Returns the network variables that are set in this process, with their values.
json network_variables() {
  json variables = json::object();
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    const bool counts = std::any_of(std::begin(kNetworkVariables), std::end(kNetworkVariables),
                                    [&](const char* beginning) { return text.starts_with(beginning); });
    if (counts && equals != std::string_view::npos)
      variables[std::string(text.substr(0, equals))] = text.substr(equals + 1);
  }
  // MVAPICH also numbers its ranks in variables with such a beginning.
  for (const char* name : {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK"}) variables.erase(name);
  return variables;
}

/// Returns the number of CPUs that each rank may run on. It counts because the CPUs move the bytes within a host.
std::vector<int> cpus_of_ranks(Communicator& comm) {
  const int own = cpus_of_this_thread().size();
  std::vector<int> all(comm.size());
  allgather(comm, std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}

/// Returns all that decides the links' costs, as far as ranks can tell.
json description_of(Communicator& comm) {
  return {{"hosts", gather_texts(comm, discover_host().hostname.substr(0, kMaxName))},
          {"processors", gather_texts(comm, processor_model().substr(0, kMaxName))},
          {"levels", comm.levels().labels()},
          {"mpi", MpiRuntime::library()},
          {"variables", network_variables()},
          {"cpus", cpus_of_ranks(comm)}};
}

int64_t seconds_since_epoch() {
  using namespace std::chrono;
  return duration_cast<seconds>(system_clock::now().time_since_epoch()).count();
}

/// Returns the days since `measured_at`, rounded down. A clock that was set back makes the result negative.
int64_t days_since(int64_t measured_at) {
  constexpr double kSecondsPerDay = 24 * 3600;
  return static_cast<int64_t>(
      std::floor((static_cast<double>(seconds_since_epoch()) - static_cast<double>(measured_at)) / kSecondsPerDay));
}

std::string file_name(const json& description) {
  uint64_t hash = kHashSeed;
  for (const char letter : json_text(description)) hash = hash_in(hash, letter);
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "%016llx.json", static_cast<unsigned long long>(hash));
  return name.data();
}

/// Reads costs that are remembered. Returns nothing when there is no such file, or none that can be used; `origin` then
/// gives the reason.
std::optional<Costs> read(const std::filesystem::path& file, const json& description, const Levels& levels,
                          std::string& origin) {
  std::ifstream in(file);
  if (!in) return std::nullopt;
  try {
    std::string text(kMaxFile, '\0');
    in.read(text.data(), kMaxFile);
    text.resize(in.gcount());
    const auto remembered = parse_link_costs(text, description, levels);
    if (!remembered) return std::nullopt;  // the file of another description with the same hash
    const int64_t days = days_since(remembered->measured_at);
    if (days < 0 || days > kMaxDays) {
      origin = str("measured, since ", file.string(), " is ", days, " days old");
      return std::nullopt;
    }
    origin = str("remembered in ", file.string());
    return remembered->costs;
  } catch (const BadRequest& error) {
    origin = str("measured, since ", file.string(), " cannot be used: ", error.what());
    return std::nullopt;
  }
}

void write(const std::filesystem::path& file, const json& description, const Costs& costs, std::string& origin) {
  try {
    std::filesystem::create_directories(file.parent_path());
    NewFile fresh(file);
    fresh.write(format_link_costs(description, {costs, seconds_since_epoch()}));
    fresh.commit();
  } catch (const std::system_error&) {
    origin += str("; not remembered: ", file.string(), " cannot be written");
  }
}

/// Broadcasts rank 0's costs. Returns nothing when rank 0 has none.
std::optional<Costs> share(Communicator& comm, const std::optional<Costs>& own) {
  std::vector<double> numbers(2 + 5 * comm.levels().count());
  if (own) {
    numbers = {1, own->reduce_seconds_per_byte};
    for (const auto& link : own->levels)
      numbers.insert(numbers.end(), {link.latency_seconds, link.message_seconds, link.bytes_per_second,
                                     link.segment_bytes == kWhole ? -1 : static_cast<double>(link.segment_bytes),
                                     static_cast<double>(link.by_cores)});
  }
  broadcast(comm, std::as_writable_bytes(std::span(numbers)), 0);
  if (numbers[0] == 0) return std::nullopt;
  Costs costs{.reduce_seconds_per_byte = numbers[1]};
  for (size_t i = 2; i < numbers.size(); i += 5)
    costs.levels.push_back({numbers[i], numbers[i + 1], numbers[i + 2],
                            numbers[i + 3] < 0 ? kWhole : static_cast<int64_t>(numbers[i + 3]), numbers[i + 4] != 0});
  return costs;
}

}  // namespace

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

LinkCosts link_costs(Communicator& comm, const std::filesystem::path& folder, bool anew) {
  LinkCosts result{.origin = "measured"};
  const json description = description_of(comm);
  const std::filesystem::path file = folder.empty() ? folder : folder / file_name(description);
  std::optional<Costs> known;
  if (comm.rank() == 0 && !anew && !file.empty()) known = read(file, description, comm.levels(), result.origin);
  known = share(comm, known);
  if (known) {
    result.costs = *known;
    result.file = file;
    return result;
  }
  result.costs = calibrate(comm);
  if (comm.rank() == 0 && !file.empty()) write(file, description, result.costs, result.origin);
  return result;
}

std::string forget_if_wrong(const LinkCosts& links, double bound_seconds, double seconds) {
  if (links.file.empty() || seconds <= 0 || bound_seconds <= kWrong * seconds) return "";
  std::error_code failed;
  std::filesystem::remove(links.file, failed);
  std::array<char, 160> text{};
  std::snprintf(text.data(), text.size(),
                "allreduces took %.3g s a step, and links of the remembered rates would take %.3g s or more: ", seconds,
                bound_seconds);
  return str(text.data(), links.file.string(), failed ? " is wrong; --calibrate measures anew" : " is forgotten");
}

}  // namespace spillway::ddl
