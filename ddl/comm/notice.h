/// The notices that a NoticeBoard sends.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace spillway::ddl {

/// Returns the beginning of a UTF-8 text, of at most so many bytes, that ends between two characters.
inline std::string beginning_of(const std::string& text, size_t bytes) {
  if (text.size() <= bytes) return text;
  const auto goes_on = [](char c) { return (static_cast<uint8_t>(c) & 0xc0) == 0x80; };
  while (bytes > 0 && goes_on(text[bytes])) --bytes;
  return text.substr(0, bytes);
}

/// A notice, small enough that every transport sends it without its receiver's help.
struct Notice {
  enum class Kind : int32_t { gave_up, timed_out, busy };
  Kind kind = Kind::busy;
  int32_t sender = -1;
  int32_t origin = -1;  ///< the rank that gave up first, as far as the sender knows
  int32_t exit_code = 0;
  std::array<char, 496> reason{};  ///< UTF-8 that ends with a zero

  /// Returns this notice with a reason, which is cut between two characters where it is too long.
  Notice about(const std::string& why) const {
    Notice notice = *this;
    const std::string kept = beginning_of(why, notice.reason.size() - 1);
    std::copy(kept.begin(), kept.end(), notice.reason.begin());
    return notice;
  }
  /// Returns true where kind and ranks are those of a notice among `ranks` ranks. A wire may have brought anything.
  bool is_sound(int ranks) const {
    const auto is_rank = [ranks](int32_t rank) { return rank >= 0 && rank < ranks; };
    return kind >= Kind::gave_up && kind <= Kind::busy && is_rank(sender) && is_rank(origin);
  }
  /// Returns the reason as text.
  std::string text() const { return {reason.begin(), std::find(reason.begin(), reason.end(), '\0')}; }
};

}  // namespace spillway::ddl
