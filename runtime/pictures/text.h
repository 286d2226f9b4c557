/// Numbers and strings as the report's page shows them.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace spillway::report {

/// Escapes `text` for an element or a quoted attribute. Bytes that are not UTF-8 and characters that XML forbids
/// (control characters) become U+FFFD.
std::string escape(std::string_view text);

/// Escapes the name of an operator or a run, which a line may break after each `_` and `@`.
std::string breakable(std::string_view name);

/// Formats up to `digits` places, without trailing zeros: `12.5`, `3`. For coordinates; "0" for a value that is not
/// finite.
std::string decimal(double value, int digits = 1);

/// Formats four significant digits: `0.4123`, `1.2e-07`, `NaN`.
std::string format_value(double value);

/// Formats three significant digits: `1.24 s`, `412 ms`, `8.1 µs`; a dash for a value that is not finite.
std::string format_seconds(double seconds);

/// Formats a fraction as a percentage: `99.7 %`; a dash for a value that is not finite.
std::string format_percent(double fraction);

/// Formats digits in groups of three: `1 234 567`.
std::string format_count(int64_t count);

/// Formats a ratio: `1.28×`; a dash for a value that is not finite.
std::string format_ratio(double ratio);

/// Returns the first `characters` of `text`. The last of them is an ellipsis when `text` is longer.
std::string shorten(const std::string& text, size_t characters);

/// Returns one figure of a page's headline: its name, the value in large type, and a note. All three are plain text.
std::string tile(std::string_view name, std::string_view value, std::string_view note);

/// Formats a count with its noun: `1 operator`, `12 operators`.
std::string counted(int64_t count, std::string_view noun);

}  // namespace spillway::report
