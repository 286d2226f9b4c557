#include "tools/ddlrun/look.h"

#include <sys/utsname.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <system_error>

#include "core/error.h"
#include "core/host/host_topology.h"
#include "core/host/processor.h"
#include "tools/ddlrun/discover.h"
#include "tools/ddlrun/hosts.h"
#include "tools/ddlrun/process.h"
#include "tools/ddlrun/shell.h"

namespace spillway::ddlrun {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kLddSeconds{30};

/// Returns the file's first line; empty when it cannot be read, as happens for links that have no speed.
std::string line_of(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) entries.push_back(entry.path());
  std::sort(entries.begin(), entries.end());
  return entries;
}

/// Returns the number at the beginning of a text, as in `200 Gb/sec`; 0 when there is none or it is negative.
int64_t leading_number(const std::string& text) {
  int64_t number = 0;
  return std::sscanf(text.c_str(), "%ld", &number) == 1 ? std::max<int64_t>(0, number) : 0;
}

bool is_elf(const std::string& file) {
  char begin[4] = {};
  std::ifstream(file, std::ios::binary).read(begin, sizeof begin);
  return std::string(begin, sizeof begin) == "\177ELF";
}

void look_at_program(HostRecord& record, const std::string& program, const std::string& path) {
  record.program = find_program(program, path);
  if (record.program.empty()) return;
  record.files.push_back({fs::path(program).filename().string(), record.program, hash_of_file(record.program)});
  if (!is_elf(record.program)) return;
  const Outcome ldd = run({"ldd", record.program}, kLddSeconds);
  // `ldd` ends with 1, and prints words on stdout or stderr, for a program that loads no libraries.
  const Libraries libraries = parse_ldd(ldd.out);
  for (const auto& [name, file] : libraries.found) record.files.push_back({name, file, hash_of_file(file)});
  record.missing = libraries.missing;
}

}  // namespace

std::string hash_of_file(const std::string& file) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> in(std::fopen(file.c_str(), "rb"), &std::fclose);
  if (!in) throw std::system_error(errno, std::generic_category(), "cannot read '" + file + "'");
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(), &XXH3_freeState);
  XXH3_128bits_reset(state.get());
  std::vector<char> buffer(size_t{1} << 20);
  while (const size_t bytes = std::fread(buffer.data(), 1, buffer.size(), in.get()))
    XXH3_128bits_update(state.get(), buffer.data(), bytes);
  if (std::ferror(in.get())) throw std::system_error(EIO, std::generic_category(), "cannot read '" + file + "'");
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return text;
}

Libraries parse_ldd(const std::string& text) {
  Libraries libraries;
  for (const std::string& line : split(text, '\n')) {
    const auto words = words_of(line);
    const auto is = [&](size_t i, const char* word) { return i < words.size() && words[i] == word; };
    if (is(1, "=>") && is(2, "not")) {
      libraries.missing.push_back(words[0]);
    } else if (is(1, "=>") && words.size() > 2 && words[2].starts_with('/')) {
      libraries.found.emplace_back(words[0], words[2]);
    } else if (words.size() == 2 && words[0].starts_with('/')) {  // the loader, and libraries linked by their paths
      libraries.found.emplace_back(fs::path(words[0]).filename().string(), words[0]);
    }
  }
  return libraries;
}

std::vector<std::string> gpus_of(const fs::path& root) {
  std::vector<std::string> gpus;
  for (const auto& gpu : entries_of(root / "proc/driver/nvidia/gpus")) {
    std::ifstream in(gpu / "information");
    for (std::string line; std::getline(in, line);)
      if (line.starts_with("Model:")) gpus.push_back(join(words_of(line.substr(6)), " "));
  }
  if (gpus.empty()) gpus.assign(count_gpus(root), "NVIDIA");
  return gpus;
}

std::vector<Network> networks_of(const fs::path& root) {
  std::vector<Network> devices, others;
  for (const auto& link : entries_of(root / "sys/class/net")) {
    const std::string name = link.filename().string();
    if (name == "lo" || line_of(link / "operstate") != "up") continue;
    std::error_code none;
    (fs::exists(link / "device", none) ? devices : others)
        .push_back({name, false, leading_number(line_of(link / "speed"))});
  }
  std::vector<Network> networks = devices.empty() ? others : devices;
  for (const auto& adapter : entries_of(root / "sys/class/infiniband"))
    for (const auto& port : entries_of(adapter / "ports"))
      if (line_of(port / "state").find("ACTIVE") != std::string::npos)
        networks.push_back({adapter.filename().string(), true, 1000 * leading_number(line_of(port / "rate"))});
  return networks;
}

HostRecord look_at_this_host(const std::string& program, const std::string& path) {
  const HostTopology host = discover_host();
  utsname system{};
  ::uname(&system);
  HostRecord record{.hostname = host.hostname,
                    .kernel = system.release,
                    .mpi = {},
                    .processor = processor_model(),
                    .cores = host.cores,
                    .memory_bytes = host.memory_bytes,
                    .gpus = gpus_of("/"),
                    .networks = networks_of("/")};
  look_at_program(record, program, path);
  return record;
}

}  // namespace spillway::ddlrun
