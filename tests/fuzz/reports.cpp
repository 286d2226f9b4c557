#include <array>
#include <nlohmann/json.hpp>

#include "core/host/machine_json.h"
#include "core/json_text.h"
#include "tests/fuzz/support.h"
#include "tests/fuzz/targets.h"
#include "tools/cli/launch_result.h"
#include "tools/ddlrun/preflight.h"

namespace spillway::fuzz {
using namespace swap;
namespace {

/// Reads the output of an inspection's launcher. The caller takes any exception for a report that cannot be used.
void preflight_report(std::string_view input) {
  static const ddlrun::Plan plan = ddlrun::make_plan(ddlrun::parse_host_option("a:2,b:2"), std::nullopt, "");
  ddlrun::Findings findings;
  try {
    findings = ddlrun::findings_of(plan, std::string(input), "prog", "Open MPI 4.1.4");
  } catch (const std::exception&) {
    return;
  }
  (void)ddlrun::describe(findings);
  (void)ddlrun::to_json(findings).dump();
}

void machine(std::string_view input) {
  taken([&] {
    try {
      const Machine machine = machine_from_json(parse_json(input));
      require(machine_from_json(parse_json(to_json(machine).dump())) == machine, "machines stay as they are");
    } catch (const nlohmann::json::exception&) {  // something is missing
    }
  });
}

/// Reads a line that a launcher forwarded. The caller takes a runtime_error for a damaged line.
void launch_result(std::string_view input) {
  try {
    const auto result = tools::result_in(input);
    require(!result || tools::result_in(tools::result_line(*result)) == result, "results stay as they are");
  } catch (const std::runtime_error&) {
  }
}

}  // namespace

void reports(std::string_view input) {
  constexpr std::array readers{preflight_report, machine, launch_result};
  readers[take_byte(input) % readers.size()](input);
}

}  // namespace spillway::fuzz
