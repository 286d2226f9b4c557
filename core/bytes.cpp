#include "core/bytes.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "core/error.h"

namespace spillway {
namespace {

struct Unit {
  std::string_view name;
  double bytes;
};
constexpr std::array kUnits{Unit{"", 1},
                            Unit{"B", 1},
                            Unit{"KB", 1e3},
                            Unit{"MB", 1e6},
                            Unit{"GB", 1e9},
                            Unit{"TB", 1e12},
                            Unit{"KiB", 1024.},
                            Unit{"MiB", 1048576.},
                            Unit{"GiB", 1024e0 * 1048576},
                            Unit{"TiB", 1048576. * 1048576}};

}  // namespace

int64_t parse_bytes(std::string_view text) {
  double number = 0;
  const char* end = text.data() + text.size();
  auto [rest, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  while (error == std::errc() && rest != end && *rest == ' ') ++rest;
  std::string_view unit(rest, end - rest);
  for (const Unit& u : kUnits) {
    if (error != std::errc() || u.name != unit) continue;
    double bytes = number * u.bytes;
    if (!(bytes >= 0) || bytes >= 9.2e18) break;
    return std::llround(bytes);
  }
  throw BadRequest(str("cannot read '", text,
                       "' as a size; write a number and a unit, such as 600MiB, 1.5GiB, 16GB or 4096 "
                       "(KB MB GB TB are powers of 1000, KiB MiB GiB TiB powers of 1024)"));
}

std::string format_bytes(int64_t bytes) {
  if (bytes == kUnlimitedBytes) return "unlimited";
  static constexpr std::array kNames{"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (std::fabs(value) >= 1024 && unit + 1 < kNames.size()) value /= 1024, ++unit;
  char text[48];
  int digits = unit == 0 || std::fabs(value) >= 100 ? 0 : std::fabs(value) >= 10 ? 1 : 2;
  std::snprintf(text, sizeof text, "%.*f %s", digits, value, kNames[unit]);
  return text;
}

}  // namespace spillway
