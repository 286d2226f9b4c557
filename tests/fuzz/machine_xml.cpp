#include "core/machine_xml.h"

#include <functional>
#include <nlohmann/json.hpp>

#include "core/json_text.h"
#include "core/machine.h"
#include "core/machine_json.h"
#include "core/nearness.h"
#include "tests/fuzz/support.h"
#include "tests/fuzz/targets.h"

namespace spillway::fuzz {

void machine_xml(std::string_view input) {
  taken([&] { check_machine_xml(input); });
}

// hwloc may crash in the child that reads for it, and a sanitizer may not find anything in our own code there: it ends
// the child with libFuzzer's exit code. Its words are in the files of ASAN_OPTIONS=log_path=… and
// UBSAN_OPTIONS=log_path=….
void machine_import(std::string_view input) {
  try {
    const Machine machine = machine_from_xml(std::string(input));
    require(machine.memory_bytes >= 0, "memory is counted");
    require(machine_from_json(parse_json(to_json(machine).dump())) == machine,
            "a machine survives the journey as JSON");
    for (const Gpu& gpu : machine.gpus) (void)nearness_of(machine, {0}, gpu.bus_id);
    (void)nearness_of(machine, {0, 1}, "");
  } catch (const BadRequest& refusal) {
    require(std::string_view(refusal.what()).find("exit code") == std::string_view::npos, "only hwloc crashes");
  }
}

}  // namespace spillway::fuzz
