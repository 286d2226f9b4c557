/// JSON that somebody else may have written.
#pragma once
#include <cstdint>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace spillway {

/// Reads a text. Throws BadRequest, with nlohmann's words, when it is malformed, nests values deeper than 32 levels, or
/// gives an object one name twice: readers would then disagree about which value counts.
nlohmann::json parse_json(std::string_view text);

/// The whole number that `value` is. Throws BadRequest naming `what` and the range when it is anything else: nlohmann's
/// own conversions round fractions, wrap large numbers and are undefined for huge ones.
int64_t whole_number(const nlohmann::json& value, std::string_view what, int64_t least = 0,
                     int64_t most = std::numeric_limits<int64_t>::max());

}  // namespace spillway
