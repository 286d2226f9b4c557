/// Looks at the host it runs on.
#pragma once
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tools/ddlrun/record.h"

namespace spillway::ddlrun {

/// This host, and `program` as `path` leads to it. Reads the program and its libraries whole, and runs `ldd`. Throws
/// std::runtime_error when a file cannot be read.
HostRecord look_at_this_host(const std::string& program, const std::string& path);

/// The cards' models, as the driver tells below `root`; without a driver's word `NVIDIA` for each device file.
std::vector<std::string> gpus_of(const std::filesystem::path& root);

/// Links that are up, but for the loopback: those of devices, or any when there is no device; and InfiniBand's active
/// ports. By name.
std::vector<Network> networks_of(const std::filesystem::path& root);

/// What `ldd` printed.
struct Libraries {
  std::vector<std::pair<std::string, std::string>> found = {};  ///< name and path
  std::vector<std::string> missing = {};
  bool operator==(const Libraries&) const = default;
};
Libraries parse_ldd(const std::string& text);

/// XXH3, 128 bits, of a file's bytes, in hexadecimal. Throws std::system_error.
std::string hash_of_file(const std::string& file);

}  // namespace spillway::ddlrun
