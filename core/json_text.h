/// JSON as text: strict reading from untrusted sources, and writing that no string can stop.
#pragma once
#include <cstdint>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <string>
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

/// Returns `value` as text, on one line or with `indent` blanks a level. Bytes of strings that are no UTF-8, as names
/// of files may have, become replacement characters, because nlohmann's dump() would throw.
std::string json_text(const nlohmann::json& value, int indent = -1);

/// Returns `text` as JSON would hold it: with replacement characters for bytes that are no UTF-8.
std::string utf8_of(std::string_view text);

}  // namespace spillway
