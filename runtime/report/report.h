/// The run as a page that a person reads, and as a trace that a tool does.
#pragma once
#include <filesystem>
#include <vector>

#include "runtime/report/named_result.h"

namespace spillway {

/// Writes DIR/report.html (self-contained: what was run, memory over a step by category against the budget, lanes of
/// compute, copies and communication, loss and metric with the comparisons, tables) and DIR/trace.json (Chrome/Perfetto
/// format, the recorded step). Makes DIR. Throws std::system_error naming the file when it cannot be written whole.
void write_report(const std::filesystem::path& dir, const TrainResult& result, const std::vector<NamedResult>& others);

/// Throws std::system_error when DIR cannot be made or files in it cannot be written; leaves no file.
void check_report_dir(const std::filesystem::path& dir);

}  // namespace spillway
