#include "tools/spillway/allow_flag.h"

#include "runtime/dry_runs/changes.h"

namespace spillway::tools {

void add_allow_flag(CLI::App& command, std::vector<std::string>& allowed) {
  command
      .add_option("--allow", allowed,
                  "Changes of the result's bits that a plan may make where they help; several with commas")
      ->type_name("CHANGES")
      ->default_str("none")
      ->delimiter(',')
      ->check(CLI::IsMember(runtime::change_names()));
}

}  // namespace spillway::tools
