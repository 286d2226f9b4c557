/// The writing of results to files.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace spillway::tools {

/// Writes `text` to a NewFile that everyone may read. A link, a pipe or a device such as /dev/stdout is not replaced:
/// it is opened once and written. Throws std::system_error naming the file.
void write_output(std::string_view text, const std::string& file);

/// Writes `value`, indented, as write_output() does.
void write_json(const nlohmann::json& value, const std::string& file);

/// Throws std::system_error when write_output() could not write to `file`, so that this is known before hours of work
/// and not after them. Leaves no trace, and opens no pipe, because its reader would take the closing for the end.
void check_writable(const std::string& file);

}  // namespace spillway::tools
