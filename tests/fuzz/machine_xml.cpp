#include "core/machine_xml.h"

#include <nlohmann/json.hpp>

#include "core/json_text.h"
#include "core/machine.h"
#include "core/machine_json.h"
#include "core/nearness.h"
#include "tests/fuzz/answerer.h"
#include "tests/fuzz/support.h"
#include "tests/fuzz/targets.h"

namespace spillway::fuzz {

void machine_xml(std::string_view input) {
  taken([&] { check_machine_xml(input); });
}

void machine_import(std::string_view input) {
  static Answerer reader([](const std::string& xml) { return to_json(import_machine(xml)).dump(); });
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
