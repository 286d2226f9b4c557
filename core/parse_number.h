/// The numbers that people write.
#pragma once
#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace spillway {

/// Returns the number that the whole of `text` is, in std::from_chars' form: a `-` may begin it, a `+` or a blank may
/// not. Returns nothing where it is no number, or one that `Number` cannot hold.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const char* const text_end = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), text_end, number);
  if (error != std::errc() || end != text_end) return std::nullopt;
  return number;
}

}  // namespace spillway
