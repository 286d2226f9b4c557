/// The results of a run: JSON for scripts, a page for people, and a trace for tools.
#pragma once
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "runtime/results/train_result.h"

namespace spillway {

/// Writes DIR/report.html and DIR/trace.json, and makes DIR. The page is self-contained: the run's options, memory over
/// a step by category against the budget, lanes of compute, copies and communication, loss and metric with the
/// comparisons, tables. The trace holds the recorded step in the Chrome/Perfetto format. Throws std::system_error
/// naming the file when it cannot be written whole.
void write_report(const std::filesystem::path& dir, const TrainResult& result, const std::vector<NamedResult>& others);

/// Throws std::system_error when DIR cannot be made or files in it cannot be written; leaves no file.
void check_report_dir(const std::filesystem::path& dir);

/// Returns the keys and values of `train --json`. A value is null where a number does not exist for this run. Bytes are
/// integers, times seconds.
nlohmann::json to_json(const TrainResult& result);

}  // namespace spillway
