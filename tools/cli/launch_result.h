/// A launch's results on their way from rank 0 to the process that started the launcher, on whatever host that is: one
/// line of rank 0's stdout.
#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace spillway::tools {

/// The line, without a newline. Its JSON is in hexadecimal digits, so that nothing in it can be taken for a launcher's
/// tag.
std::string result_line(const nlohmann::json& result);

/// Reads what result_line() made. Returns nothing when `line` is something else that ranks printed. A launcher may put
/// its tag (`[1,0]<stdout>:`) before the line, and again wherever its buffer of some KiB ended. Throws
/// std::runtime_error when the rest is damaged.
std::optional<nlohmann::json> result_in(std::string_view line);

}  // namespace spillway::tools
