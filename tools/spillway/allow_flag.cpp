#include "tools/spillway/allow_flag.h"

#include "runtime/dry_runs/changes.h"

namespace spillway::tools {

void add_allow_flag(CLI::App& command, std::vector<std::string>& allowed) {
  command
      .add_option("--allow", allowed,
                  "Changes of bits that a plan under the budget may make where they help; several with commas")
      ->type_name("CHANGES")
      ->default_str("none")
      ->delimiter(',')
      ->check(CLI::IsMember(runtime::change_names()));
}

}  // namespace spillway::tools
