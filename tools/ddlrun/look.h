/// The inspection of the host that this process runs on.
#pragma once
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tools/ddlrun/record.h"

namespace spillway::ddlrun {

/// Returns the record of this host and of `program`, which is searched for in `path`. Reads the program and its
/// libraries whole, and runs `ldd`. Throws std::runtime_error when a file cannot be read.
HostRecord look_at_this_host(const std::string& program, const std::string& path);

/// Returns the GPUs' models, as the driver tells them below `root`. Where the driver tells none it returns `NVIDIA` for
/// each device file.
std::vector<std::string> gpus_of(const std::filesystem::path& root);

/// Returns the links that are up, except the loopback, and then InfiniBand's active ports, each ordered by name. The
/// links are those of devices, or any when there is no device.
std::vector<Network> networks_of(const std::filesystem::path& root);

/// The libraries that `ldd` listed.
struct Libraries {
  std::vector<std::pair<std::string, std::string>> found = {};  ///< name and path
  std::vector<std::string> missing = {};
  bool operator==(const Libraries&) const = default;
};
Libraries parse_ldd(const std::string& text);

/// Returns the XXH3 hash, 128 bits, of a file's bytes, in hexadecimal. Throws std::system_error.
std::string hash_of_file(const std::string& file);

}  // namespace spillway::ddlrun
