/// Conversions between byte counts and the text that people write for them.
#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace spillway {

/// The budget that stands for none.
inline constexpr int64_t kUnlimitedBytes = std::numeric_limits<int64_t>::max();

/// Reads `600MiB`, `1.5GiB`, `16GB`, `4096`, `512 KiB`: GB = 1e9, GiB = 2^30, a bare number is bytes.
/// Throws BadRequest naming `text` and the accepted forms.
int64_t parse_bytes(std::string_view text);

/// Returns text such as `1.50 GiB`, `12.0 MiB` or `512 B`, with three significant digits; "unlimited" for
/// kUnlimitedBytes.
std::string format_bytes(int64_t bytes);

/// Returns the next multiple of `alignment` (a power of two) that is not below `bytes`.
constexpr int64_t round_up(int64_t bytes, int64_t alignment) {
  return (bytes + alignment - 1) & ~(alignment - 1);
}

namespace literals {
constexpr int64_t operator""_KiB(unsigned long long n) {
  return static_cast<int64_t>(n) << 10;
}
constexpr int64_t operator""_MiB(unsigned long long n) {
  return static_cast<int64_t>(n) << 20;
}
constexpr int64_t operator""_GiB(unsigned long long n) {
  return static_cast<int64_t>(n) << 30;
}
}  // namespace literals

}  // namespace spillway
