#include "core/host/machine_xml.h"

#include <hwloc.h>

#include <nlohmann/json.hpp>

#include "core/host/locality.h"
#include "core/host/machine.h"
#include "core/host/machine_json.h"
#include "core/json_text.h"
#include "tests/fuzz/answerer.h"
#include "tests/fuzz/support.h"
#include "tests/fuzz/targets.h"

namespace spillway::fuzz {
using namespace swap;
namespace {

/// Keeps hwloc's plugins loaded. hwloc loads them for the first topology and unloads them with the last one, which
/// takes longer than reading a file.
void keep_plugins() {
  static const hwloc_topology_t kept = [] {
    hwloc_topology_t topology = nullptr;
    require(hwloc_topology_init(&topology) == 0, "hwloc works");
    return topology;
  }();
  (void)kept;
}

}  // namespace

void machine_xml(std::string_view input) {
  taken([&] { check_machine_xml(input); });
}

void machine_import(std::string_view input) {
  static Answerer reader([](const std::string& xml) {
    keep_plugins();
    return to_json(import_machine(xml)).dump();
  });
  taken([&] {
    check_machine_xml(input);
    const auto json = reader.ask(input);
    if (!json) return;  // hwloc crashed
    const Machine machine = machine_from_json(parse_json(*json));
    require(machine.memory_bytes >= 0, "memory is counted");
    require(machine_from_json(parse_json(to_json(machine).dump())) == machine,
            "a machine survives the journey as JSON");
    for (const Gpu& gpu : machine.gpus) (void)nearness_of(machine, {0}, gpu.bus_id);
    (void)nearness_of(machine, {0, 1}, "");
  });
}

}  // namespace spillway::fuzz
