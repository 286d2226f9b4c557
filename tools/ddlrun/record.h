/// The record of one host: the facts that preflight compares.
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
  int64_t megabits = 0;  ///< megabits per second; 0 when the system does not say
  bool operator==(const Network&) const = default;
};

struct FileRecord {
  std::string name;  ///< name by which the file is asked for: a library's soname
  std::string path;
  std::string hash;  ///< hash of all its bytes
  bool operator==(const FileRecord&) const = default;
};

struct HostRecord {
  std::string hostname;
  std::string kernel;
  std::string mpi;        ///< version text of the library
  std::string processor;  ///< the processor's model; empty where the system does not name it
  int64_t cores = 0;
  int64_t memory_bytes = 0;
  std::vector<std::string> gpus = {};  ///< models of the GPUs
  std::vector<Network> networks = {};
  std::string program = {};               ///< path on this host; empty when there is none
  std::vector<FileRecord> files = {};     ///< the program, then the libraries that it loads at its start
  std::vector<std::string> missing = {};  ///< libraries that the program needs and does not find
  bool operator==(const HostRecord&) const = default;
};

nlohmann::json to_json(const HostRecord& record);
/// Reads a record. Throws nlohmann::json::exception or BadRequest when `value` is no result of to_json().
HostRecord record_of(const nlohmann::json& value);

}  // namespace spillway::ddlrun
