/// The commands of the `spillway` program. Each adds itself to the command line and returns the function that runs it.
#pragma once
#include <CLI/CLI.hpp>
#include <functional>
#include <stdexcept>

#include "core/program.h"

namespace spillway::tools {

using enum ExitCode;

/// A function that runs a parsed command.
using Run = std::function<int()>;

Run add_train(CLI::App& app);
Run add_phantom(CLI::App& app);
Run add_bench(CLI::App& app);
Run add_plan(CLI::App& app);
Run add_reproduce(CLI::App& app);
Run add_topo(CLI::App& app);

}  // namespace spillway::tools
