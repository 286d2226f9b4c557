/// The results of a launch as one line of rank 0's stdout. The line reaches the process that started the launcher, on
/// any host.
#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace spillway::tools {

/// Returns the line, without a newline. Its JSON is in hexadecimal digits, so that nothing in it can be taken for a
/// launcher's tag.
std::string result_line(const nlohmann::json& result);

/// Reads a line that result_line() made. Returns nothing when `line` is something else that ranks printed. A launcher
/// may put its tag (`[1,0]<stdout>:`) before the line, and again wherever its buffer of some KiB ended. Throws
/// std::runtime_error when the rest is damaged.
std::optional<nlohmann::json> result_in(std::string_view line);

}  // namespace spillway::tools
