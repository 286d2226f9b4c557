#include "tools/ddlrun/compare.h"

#include <algorithm>
#include <functional>

#include "core/bytes.h"
#include "core/error.h"
#include "tools/ddlrun/hosts.h"
#include "tools/ddlrun/plan.h"

namespace spillway::ddlrun {
namespace {

using Hosts = std::vector<Inspected>;

/// The share by which the memory of equal hosts may differ. The memory that firmware and kernel take for themselves
/// differs between hosts of one kind.
constexpr double kAlike = 0.02;
constexpr size_t kMaxNames = 4;
constexpr const char* kNone = "none";

/// Joins names as in `a, b, c, d and 3 more`.
std::string some(const std::vector<std::string>& names) {
  if (names.size() <= kMaxNames + 1) return join(names);
  return str(join({names.begin(), names.begin() + kMaxNames}), " and ", names.size() - kMaxNames, " more");
}

/// Returns each value with the hosts that have it; values are in order of first appearance.
std::vector<std::pair<std::string, std::vector<std::string>>> holders(
    const Hosts& hosts, const std::function<std::string(const HostRecord&)>& value) {
  std::vector<std::pair<std::string, std::vector<std::string>>> known;
  for (const Inspected& host : hosts) {
    const std::string own = value(host.record);
    auto found = std::find_if(known.begin(), known.end(), [&](const auto& pair) { return pair.first == own; });
    if (found == known.end()) found = known.insert(known.end(), {own, {}});
    found->second.push_back(host.name);
  }
  return known;
}

/// Returns `64 (a, b), 32 (c)`; empty when all hosts have the same value.
std::string differences(const Hosts& hosts, const std::function<std::string(const HostRecord&)>& value) {
  const auto known = holders(hosts, value);
  if (known.size() < 2) return "";
  std::vector<std::string> parts;
  for (const auto& [text, names] : known) parts.push_back(str(text, " (", some(names), ")"));
  return join(parts);
}

std::string hash_in(const HostRecord& record, const std::string& name) {
  for (const FileRecord& file : record.files)
    if (file.name == name) return file.hash.substr(0, 12);
  return kNone;
}

/// The files that differ between the same groups of hosts. One package that is older on some host brings many such
/// files.
struct Difference {
  std::string parties;
  std::string first_file;  ///< the hosts of each version of the first file
  std::vector<std::string> files = {};
};

void compare_files(const Hosts& hosts, Verdict& verdict) {
  std::vector<std::string> names;
  for (const Inspected& host : hosts)
    for (const FileRecord& file : host.record.files)
      if (std::find(names.begin(), names.end(), file.name) == names.end()) names.push_back(file.name);
  std::vector<Difference> found;
  for (const std::string& name : names) {
    const auto hash = [&](const HostRecord& record) { return hash_in(record, name); };
    const std::string text = differences(hosts, hash);
    if (text.empty()) continue;
    std::vector<std::string> parties;
    for (const auto& [value, holding] : holders(hosts, hash))
      parties.push_back(str(value == kNone ? "without: " : "", join(holding)));
    const std::string key = join(parties, "; ");
    auto same = std::find_if(found.begin(), found.end(), [&](const Difference& one) { return one.parties == key; });
    if (same == found.end()) same = found.insert(found.end(), {key, text});
    same->files.push_back(name);
  }
  for (const auto& [parties, first_file, files] : found)
    verdict.errors.push_back(str(some(files),
                                 files.size() == 1 ? " is not the same everywhere: " : " are not the same everywhere: ",
                                 files.size() == 1 ? "" : files.front() + " is ", first_file));
}

void compare_memory(const Hosts& hosts, Verdict& verdict) {
  int64_t least = hosts.front().record.memory_bytes, most = least;
  for (const Inspected& host : hosts) {
    least = std::min(least, host.record.memory_bytes);
    most = std::max(most, host.record.memory_bytes);
  }
  if (static_cast<double>(most - least) > kAlike * static_cast<double>(most))
    verdict.warnings.push_back("unequal memory: " + differences(hosts, [](const HostRecord& record) {
                                 return format_bytes(record.memory_bytes);
                               }));
}

/// Joins things and counts equal ones, as in `2 x a, b`.
std::string counted(const std::vector<std::string>& things) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < things.size();) {
    size_t end = i;
    while (end < things.size() && things[end] == things[i]) ++end;
    parts.push_back(end - i == 1 ? things[i] : str(end - i, " x ", things[i]));
    i = end;
  }
  return parts.empty() ? "-" : join(parts);
}

}  // namespace

std::string describe_gpus(const HostRecord& record) {
  auto gpus = record.gpus;
  std::sort(gpus.begin(), gpus.end());
  return counted(gpus);
}

std::string describe_networks(const HostRecord& record) {
  auto networks = record.networks;
  std::stable_sort(networks.begin(), networks.end(), [](const Network& a, const Network& b) {
    return std::pair(a.infiniband, a.megabits) < std::pair(b.infiniband, b.megabits);
  });
  std::vector<std::string> parts;
  for (const Network& network : networks) {
    const std::string speed = network.megabits == 0          ? "of unknown speed"
                              : network.megabits % 1000 == 0 ? str(network.megabits / 1000, " Gbit/s")
                                                             : str(network.megabits, " Mbit/s");
    parts.push_back(str(network.infiniband ? "InfiniBand " : network.megabits == 0 ? "Ethernet " : "", speed));
  }
  return counted(parts);
}

Verdict compare(const Hosts& hosts, const std::string& program) {
  Verdict verdict;
  std::vector<std::string> without;
  for (const Inspected& host : hosts) {
    if (host.record.program.empty()) without.push_back(host.name);
    if (!host.record.missing.empty())
      verdict.errors.push_back(str(program, " does not find ", some(host.record.missing), " on ", host.name));
    const auto gpus = std::ssize(host.record.gpus);
    if (gpus > 0 && gpus < host.ranks)
      verdict.warnings.push_back(str(host.name, " has ", gpus, " GPUs for ", host.ranks, " ranks"));
  }
  if (!without.empty())
    verdict.errors.push_back(str("there is no program '", program, "' on ", some(without),
                                 " (searched in PATH there, or from the working directory)"));
  if (hosts.empty()) return verdict;
  Hosts with_program = hosts;
  std::erase_if(with_program, [](const Inspected& host) { return host.record.program.empty(); });
  compare_files(with_program, verdict);
  const auto check = [&](std::vector<std::string>& list, const char* what,
                         const std::function<std::string(const HostRecord&)>& value) {
    const std::string text = differences(hosts, value);
    if (!text.empty()) list.push_back(str(what, text));
  };
  check(verdict.errors, "unequal MPI libraries: ", [](const HostRecord& record) { return record.mpi; });
  check(verdict.warnings,
        "unequal processors, which may round otherwise: ", [](const HostRecord& record) { return record.processor; });
  check(verdict.warnings, "unequal cores: ", [](const HostRecord& record) { return str(record.cores); });
  compare_memory(hosts, verdict);
  check(verdict.warnings, "unequal GPUs: ", describe_gpus);
  check(verdict.warnings, "unequal networks: ", describe_networks);
  check(verdict.warnings, "unequal kernels: ", [](const HostRecord& record) { return record.kernel; });
  return verdict;
}

std::string inspection_table(const Hosts& hosts) {
  std::vector<std::vector<std::string>> rows{{"host", "cores", "memory", "GPUs", "network"}};
  for (const Inspected& host : hosts)
    rows.push_back({host.name, str(host.record.cores), format_bytes(host.record.memory_bytes),
                    describe_gpus(host.record), describe_networks(host.record)});
  return align(rows, {false, true, true, false, false});
}

}  // namespace spillway::ddlrun
