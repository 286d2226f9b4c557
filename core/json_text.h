/// Strict reading of JSON from untrusted sources.
#pragma once
#include <cstdint>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace spillway {

/// Parses `text`. Throws BadRequest, with nlohmann's message, when it is malformed. Throws BadRequest also when values
/// nest deeper than 32 levels, or when an object has one name twice. A repeated name is refused because readers would
/// disagree about which value counts.
nlohmann::json parse_json(std::string_view text);

/// Returns the whole number that `value` is. Throws BadRequest naming `what` and the range when `value` is anything
/// else. nlohmann's own conversions are not used, because they round fractions, wrap large numbers and are undefined
/// for huge ones.
int64_t whole_number(const nlohmann::json& value, std::string_view what, int64_t least = 0,
                     int64_t most = std::numeric_limits<int64_t>::max());

}  // namespace spillway
