/// spillway bench allreduce.
#pragma once
#include "tools/command.h"

namespace spillway::tools {

Run add_bench_allreduce(CLI::App& bench);

}  // namespace spillway::tools
