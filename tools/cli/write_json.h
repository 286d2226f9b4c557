/// The writing of results to files.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace spillway::tools {

/// Writes `value`, indented. Throws std::system_error naming the file.
void write_json(const nlohmann::json& value, const std::string& file);

}  // namespace spillway::tools
