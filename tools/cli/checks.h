/// Checks of flags' values, and the messages for wrong ones.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

namespace spillway::tools {

/// Accepts whole numbers from `least` on.
CLI::Validator at_least(int64_t least);

/// Accepts no number with a sign: for options of unsigned type, which CLI11 would wrap around.
CLI::Validator without_sign();

/// Returns the line that says why the command line was refused, by `program`'s name.
std::string failure_text(const CLI::App& app, const CLI::Error& error, const std::string& program);

}  // namespace spillway::tools
