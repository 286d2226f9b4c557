/// The flag that lets a plan change bits.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace spillway::tools {

/// Adds `--allow` to the command, in the group that is open.
void add_allow_flag(CLI::App& command, std::vector<std::string>& allowed);

}  // namespace spillway::tools
