/// spillway bench kfac: what second order costs.
#pragma once
#include "tools/cli/command.h"

namespace spillway::tools {

/// Adds the command to `bench`.
Run add_bench_kfac(CLI::App& bench);

}  // namespace spillway::tools
