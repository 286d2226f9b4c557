#include "swap/pager/page_state.h"

#include <array>

namespace spillway::swap {

std::string_view name(PageState state) noexcept {
  static constexpr std::array<std::string_view, 8> kNames{
      "resident_dirty", "resident_clean", "paging_out", "absent", "paging_in", "discarded", "replaying", "destroyed"};
  return kNames[static_cast<size_t>(state)];
}

bool may_follow(PageState from, PageState to) noexcept {
  using enum PageState;
  if (to == destroyed) return from != destroyed;
  switch (from) {
    case resident_dirty:
      return to == paging_out || to == discarded;
    case resident_clean:
      return to == resident_dirty || to == absent || to == discarded;
    case paging_out:
      return to == resident_clean || to == resident_dirty || to == absent;
    case absent:
      return to == paging_in;
    case paging_in:
      return to == resident_clean || to == resident_dirty || to == absent;
    case discarded:
      return to == replaying;
    case replaying:
      return to == resident_dirty || to == discarded;
    case destroyed:
      break;
  }
  return false;
}

}  // namespace spillway::swap
