/// Checks of flags' values, and the messages for wrong ones.
#pragma once
#include <CLI/CLI.hpp>
#include <string>

namespace spillway::tools {

/// Makes each flag of `app` and of its commands refuse an empty value, because most would take it as not given.
void refuse_empty_values(CLI::App& app);

/// Returns the line that says why the command line was refused, by `program`'s name.
std::string failure_text(const CLI::App& app, const CLI::Error& error, const std::string& program);

}  // namespace spillway::tools
