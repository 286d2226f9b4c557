/// The commands of the `spillway` program. Each adds itself to the command line and returns what runs it.
#pragma once
#include <CLI/CLI.hpp>
#include <functional>
#include <stdexcept>

namespace spillway::tools {

/// What a process returns to its caller.
enum ExitCode : int { kOk = 0, kFailure = 1, kBadRequest = 2, kInfeasible = 3, kCommunication = 4, kInterrupted = 130 };

/// Runs a parsed command.
using Run = std::function<int()>;

Run add_train(CLI::App& app);
Run add_phantom(CLI::App& app);
Run add_bench(CLI::App& app);
Run add_topo(CLI::App& app);

}  // namespace spillway::tools
