/// Numbers and strings as the report's page shows them.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace spillway::report {

/// `text` for an element or a quoted attribute. What is not UTF-8 and what XML forbids (control characters) becomes
/// U+FFFD.
std::string escape(std::string_view text);

/// Up to `digits` places, without trailing zeros: `12.5`, `3`. For coordinates; "0" for what is not finite.
std::string decimal(double value, int digits = 1);

/// Four significant digits: `0.4123`, `1.2e-07`, `NaN`.
std::string format_value(double value);

/// Three significant digits: `1.24 s`, `412 ms`, `8.1 µs`; a dash for what is not finite.
std::string format_seconds(double seconds);

/// Of a fraction: `99.7 %`; a dash for what is not finite.
std::string format_percent(double fraction);

/// Digits in groups of three: `1 234 567`.
std::string format_count(int64_t count);

/// `1.28×`; a dash for what is not finite.
std::string format_ratio(double ratio);

/// The first `characters` of `text`, the last of them an ellipsis when that is not all.
std::string shorten(const std::string& text, size_t characters);

/// `1 operator`, `12 operators`.
std::string counted(int64_t count, std::string_view noun);

}  // namespace spillway::report
