/// spillway bench allreduce.
#pragma once
#include "tools/cli/command.h"

namespace spillway::tools {

Run add_bench_allreduce(CLI::App& bench);

}  // namespace spillway::tools
