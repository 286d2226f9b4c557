/// Conversions between a Machine and JSON.
#pragma once
#include <nlohmann/json_fwd.hpp>

#include "core/host/machine.h"

namespace spillway {

/// Returns {hostname cores memory_bytes packages: [{number model}] numa: [{number package memory_bytes cores cpus}]
/// gpus: [{bus_id name package numa pcie_switch pci_bytes_per_second nvlink_group nvlink_bytes_per_second}] nics:
/// [{bus_id name interfaces package numa pcie_switch pci_bytes_per_second bits_per_second}]}. A value is null where it
/// is unknown or not there.
nlohmann::json to_json(const Machine& machine);
/// Reads the JSON that to_json() writes. Throws nlohmann's exceptions when a key is missing, and BadRequest for an
/// impossible number.
Machine machine_from_json(const nlohmann::json& json);

}  // namespace spillway
