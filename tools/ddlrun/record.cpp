#include "tools/ddlrun/record.h"

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json_text.h"

namespace spillway::ddlrun {

using nlohmann::json;

namespace {

/// Returns a hash, and throws BadRequest when it has other characters than hexadecimal digits. Only its beginning is
/// shown, and the beginning of any other text may end within a letter.
std::string hash_of(const json& value) {
  const auto& hash = value.get_ref<const std::string&>();
  if (hash.find_first_not_of("0123456789abcdef") != std::string::npos)
    throw BadRequest("a file's hash has other characters than hexadecimal digits");
  return hash;
}

}  // namespace

json to_json(const HostRecord& record) {
  json networks = json::array(), files = json::array();
  for (const Network& network : record.networks)
    networks.push_back({{"name", network.name}, {"infiniband", network.infiniband}, {"megabits", network.megabits}});
  for (const FileRecord& file : record.files)
    files.push_back({{"name", file.name}, {"path", file.path}, {"hash", file.hash}});
  return {{"hostname", record.hostname}, {"kernel", record.kernel},
          {"mpi", record.mpi},           {"processor", record.processor},
          {"cores", record.cores},       {"memory_bytes", record.memory_bytes},
          {"gpus", record.gpus},         {"networks", networks},
          {"program", record.program},   {"files", files},
          {"missing", record.missing}};
}

HostRecord record_of(const json& value) {
  HostRecord record{.hostname = value.at("hostname"),
                    .kernel = value.at("kernel"),
                    .mpi = value.at("mpi"),
                    .processor = value.at("processor"),
                    .cores = whole_number(value.at("cores"), "cores"),
                    .memory_bytes = whole_number(value.at("memory_bytes"), "memory_bytes"),
                    .gpus = value.at("gpus"),
                    .program = value.at("program"),
                    .missing = value.at("missing")};
  for (const json& network : value.at("networks"))
    record.networks.push_back(
        {network.at("name"), network.at("infiniband"), whole_number(network.at("megabits"), "megabits")});
  for (const json& file : value.at("files"))
    record.files.push_back({file.at("name"), file.at("path"), hash_of(file.at("hash"))});
  return record;
}

}  // namespace spillway::ddlrun
