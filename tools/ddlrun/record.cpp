#include "tools/ddlrun/record.h"

#include <nlohmann/json.hpp>

namespace spillway::ddlrun {

using nlohmann::json;

json to_json(const HostRecord& record) {
  json networks = json::array(), files = json::array();
  for (const Network& network : record.networks)
    networks.push_back({{"name", network.name}, {"infiniband", network.infiniband}, {"megabits", network.megabits}});
  for (const FileRecord& file : record.files)
    files.push_back({{"name", file.name}, {"path", file.path}, {"hash", file.hash}});
  return {{"hostname", record.hostname},
          {"kernel", record.kernel},
          {"mpi", record.mpi},
          {"cores", record.cores},
          {"memory_bytes", record.memory_bytes},
          {"gpus", record.gpus},
          {"networks", networks},
          {"program", record.program},
          {"files", files},
          {"missing", record.missing}};
}

HostRecord record_of(const json& value) {
  HostRecord record{.hostname = value.at("hostname"),
                    .kernel = value.at("kernel"),
                    .mpi = value.at("mpi"),
                    .cores = value.at("cores"),
                    .memory_bytes = value.at("memory_bytes"),
                    .gpus = value.at("gpus"),
                    .program = value.at("program"),
                    .missing = value.at("missing")};
  for (const json& network : value.at("networks"))
    record.networks.push_back({network.at("name"), network.at("infiniband"), network.at("megabits")});
  for (const json& file : value.at("files"))
    record.files.push_back({file.at("name"), file.at("path"), file.at("hash")});
  return record;
}

}  // namespace spillway::ddlrun
