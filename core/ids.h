/// Names of pages and of those who use them, and times of use.
#pragma once
#include <cstdint>
#include <limits>

namespace spillway {

using PageId = uint64_t;
/// A user of pages: one Session of those that share the pager.
using UserId = uint64_t;
inline constexpr UserId kNobody = 0;

/// The next use of a page of which no schedule knows one.
inline constexpr int64_t kNextUseUnknown = std::numeric_limits<int64_t>::max();

/// When a page is used, as far as is known.
struct PageUseTime {
  int64_t next_use = kNextUseUnknown;  ///< operator clock
  uint64_t last_use = 0;               ///< orders least recently used, where next uses are the same or unknown
  bool sooner_than(const PageUseTime& other) const noexcept {
    return next_use != other.next_use ? next_use < other.next_use : last_use > other.last_use;
  }
};

}  // namespace spillway
