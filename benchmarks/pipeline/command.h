/// `spillway bench pipeline`.
#pragma once
#include "tools/cli/command.h"

namespace spillway::tools {

/// Adds `bench pipeline`, which measures schedules of pipelines, and work in their waits, on items that sleep.
Run add_bench_pipeline(CLI::App& bench);

}  // namespace spillway::tools
