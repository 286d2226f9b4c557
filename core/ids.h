/// Identifiers of pages and of their users, and the times at which pages are used.
#pragma once
#include <cstdint>
#include <limits>

namespace spillway {

using PageId = uint64_t;
/// A user of pages: one of the Sessions that share the pager.
using UserId = uint64_t;
inline constexpr UserId kNobody = 0;

/// The next use of a page for which no schedule knows a next use.
inline constexpr int64_t kNextUseUnknown = std::numeric_limits<int64_t>::max();

/// The times at which a page is used, as far as they are known.
struct PageUseTime {
  int64_t next_use = kNextUseUnknown;  ///< time on the operator clock
  uint64_t last_use = 0;               ///< orders pages by least recent use where their next uses are equal or unknown
  bool sooner_than(const PageUseTime& other) const noexcept {
    return next_use != other.next_use ? next_use < other.next_use : last_use > other.last_use;
  }
};

}  // namespace spillway
