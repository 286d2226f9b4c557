/// The report of a Session: a page for people, and a trace for tools.
#pragma once
#include <filesystem>
#include <string>

#include "runtime/recording/session_report.h"

namespace spillway {

namespace report {
/// Draws the page in HTML that is well-formed XML too.
std::string draw_session_page(const SessionReport& session);
}  // namespace report

/// Writes DIR/report.html and DIR/trace.json, and makes DIR. The page is self-contained: memory over a step by category
/// against the budget, lanes of compute and copies, what leaves the device and why, and the operators that took most
/// time and memory. The trace holds the recorded step in the Chrome/Perfetto format. Throws std::system_error naming
/// the file when it cannot be written whole.
void write_report(const std::filesystem::path& dir, const SessionReport& session);

}  // namespace spillway
