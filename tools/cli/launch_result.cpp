#include "tools/cli/launch_result.h"

#include <algorithm>
#include <charconv>
#include <stdexcept>

#include "core/json_text.h"

namespace spillway::tools {
namespace {

constexpr std::string_view kMark = "spillway-launch: ";

}  // namespace

std::string result_line(const nlohmann::json& result) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string line(kMark);
  for (const char character : json_text(result)) {
    const auto byte = static_cast<unsigned char>(character);
    line += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return line;
}

std::optional<nlohmann::json> result_in(std::string_view line) {
  const size_t at = line.find(kMark);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string tag(line.substr(0, at));
  std::string digits(line.substr(at + kMark.size()));
  while (!digits.empty() && (digits.back() == '\n' || digits.back() == '\r')) digits.pop_back();
  if (!tag.empty())
    for (size_t next = 0; (next = digits.find(tag, next)) != std::string::npos;) digits.erase(next, tag.size());
  std::string text;
  for (size_t i = 0; i < digits.size(); i += 2) {
    unsigned byte = 0;
    const char* end = digits.data() + std::min(i + 2, digits.size());
    const auto [stop, error] = std::from_chars(digits.data() + i, end, byte, 16);
    if (error != std::errc() || stop != end)
      throw std::runtime_error("the launcher damaged the line with rank 0's results");
    text += static_cast<char>(byte);
  }
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception&) {
    throw std::runtime_error("the launcher cut the line with rank 0's results");
  }
}

}  // namespace spillway::tools
