/// The files of a report.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "core/trace_events.h"

namespace spillway::report {

/// Makes DIR and writes `page` as DIR/report.html, and the events in the Chrome/Perfetto format as DIR/trace.json. Both
/// are on the disk before either takes its final name. Throws std::system_error naming the file when it cannot be
/// written whole.
void write_files(const std::filesystem::path& dir, const std::string& page, const std::vector<TraceEvent>& events);

/// Throws std::system_error when DIR cannot be made or files in it cannot be written; leaves no file.
void check_files(const std::filesystem::path& dir);

}  // namespace spillway::report
