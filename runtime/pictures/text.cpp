#include "runtime/pictures/text.h"

#include <cmath>
#include <cstdio>

#include "core/error.h"

namespace spillway::report {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
constexpr std::string_view kDash = "\xE2\x80\x93";
constexpr std::string_view kThinSpace = "\xE2\x80\xAF";

template <class... Args>
std::string print(const char* format, Args... args) {
  char text[64];
  std::snprintf(text, sizeof text, format, args...);
  return text;
}

bool xml_allows(uint32_t code) {
  if (code < 0x20) return code == '\t' || code == '\n' || code == '\r';
  return code != 0x7F && !(code >= 0xD800 && code <= 0xDFFF) && code != 0xFFFE && code != 0xFFFF && code <= 0x10FFFF;
}

/// Returns the bytes of the character that `text` begins with; 0 when they are not UTF-8 or a character that XML
/// forbids.
size_t character_length(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const size_t length = lead < 0x80 ? 1 : lead >> 5 == 0x6 ? 2 : lead >> 4 == 0xE ? 3 : lead >> 3 == 0x1E ? 4 : 0;
  if (length == 0 || length > text.size()) return 0;
  static constexpr uint32_t kLeadBits[] = {0, 0x7F, 0x1F, 0x0F, 0x07};
  static constexpr uint32_t kMin[] = {0, 0, 0x80, 0x800, 0x10000};  // a smaller code was written in too many bytes
  uint32_t code = lead & kLeadBits[length];
  for (size_t i = 1; i < length; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte >> 6 != 2) return 0;
    code = code << 6 | (byte & 0x3F);
  }
  return code >= kMin[length] && xml_allows(code) ? length : 0;
}

}  // namespace

std::string escape(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t length = character_length(text);
    switch (length == 0 ? '\0' : text[0]) {
      case '\0':
        out += kReplacement;
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

std::string breakable(std::string_view name) {
  std::string out = escape(name);
  for (size_t at = 0; (at = out.find_first_of("_@", at)) != std::string::npos;) out.insert(++at, "<wbr/>");
  return out;
}

std::string decimal(double value, int digits) {
  if (!std::isfinite(value) || std::fabs(value) > 1e15) return "0";
  std::string text = print("%.*f", digits, value);
  if (text.find('.') != std::string::npos) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
  }
  return text == "-0" ? "0" : text;
}

std::string format_value(double value) {
  if (std::isnan(value)) return "NaN";
  return print("%.4g", value);
}

std::string format_seconds(double seconds) {
  if (!std::isfinite(seconds)) return std::string(kDash);
  if (seconds == 0) return "0 s";
  const double size = std::fabs(seconds);
  const double scale = size >= 0.9995 ? 1 : size >= 0.9995e-3 ? 1e3 : 1e6;
  const double value = seconds * scale;
  const int digits = std::fabs(value) >= 99.95 ? 0 : std::fabs(value) >= 9.995 ? 1 : 2;
  return print("%.*f", digits, value) + (scale == 1 ? " s" : scale == 1e3 ? " ms" : " µs");
}

std::string format_percent(double fraction) {
  if (!std::isfinite(fraction)) return std::string(kDash);
  return print("%.*f %%", std::fabs(fraction) >= 10 ? 0 : 1, 100 * fraction);
}

std::string format_count(int64_t count) {
  std::string digits = std::to_string(count), out;
  const size_t first = count < 0 ? 1 : 0;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > first && (digits.size() - i) % 3 == 0) out += kThinSpace;
    out += digits[i];
  }
  return out;
}

std::string format_ratio(double ratio) {
  if (!std::isfinite(ratio)) return std::string(kDash);
  return print(ratio < 100 ? "%.2f" : "%.0f", ratio) + "×";
}

std::string shorten(const std::string& text, size_t characters) {
  auto begins_character = [&](size_t i) { return (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80; };
  size_t count = 0, cut = text.size();
  for (size_t i = 0; i < text.size(); ++i) {
    if (!begins_character(i)) continue;
    if (++count == characters) cut = i;
  }
  return count <= characters ? text : text.substr(0, cut) + "…";
}

std::string counted(int64_t count, std::string_view noun) {
  return str(format_count(count), " ", noun, count == 1 ? "" : "s");
}

std::string tile(std::string_view name, std::string_view value, std::string_view note) {
  return str("<div><span>", escape(name), "</span><b>", escape(value), "</b><span>", escape(note), "</span></div>\n");
}

}  // namespace spillway::report
