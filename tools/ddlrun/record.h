/// What one host is: the facts that preflight compares.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace spillway::ddlrun {

/// A link to other hosts.
struct Network {
  std::string name;
  bool infiniband = false;
  int64_t megabits = 0;  ///< a second; 0 when the system does not say
  bool operator==(const Network&) const = default;
};

struct FileRecord {
  std::string name;  ///< as it is asked for: a library's soname
  std::string path;
  std::string hash;  ///< of all its bytes
  bool operator==(const FileRecord&) const = default;
};

struct HostRecord {
  std::string hostname;
  std::string kernel;
  std::string mpi;        ///< the library's own words
  std::string processor;  ///< its model; empty where the system does not name it
  int64_t cores = 0;
  int64_t memory_bytes = 0;
  std::vector<std::string> gpus = {};  ///< their models
  std::vector<Network> networks = {};
  std::string program = {};               ///< its path on this host; empty: there is none
  std::vector<FileRecord> files = {};     ///< the program, then the libraries that it loads at its start
  std::vector<std::string> missing = {};  ///< libraries that it wants and does not find
  bool operator==(const HostRecord&) const = default;
};

nlohmann::json to_json(const HostRecord& record);
/// Throws nlohmann::json::exception or BadRequest when `value` is not what to_json makes.
HostRecord record_of(const nlohmann::json& value);

}  // namespace spillway::ddlrun
