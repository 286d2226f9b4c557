#include "swap/tiers/host_copy_state.h"

#include <array>
#include <stdexcept>

#include "core/error.h"

namespace spillway::swap {

std::string_view name(HostCopyState state) noexcept {
  static constexpr std::array<std::string_view, 10> kNames{"waiting", "in_slab", "spilling",    "in_both",
                                                           "writing", "on_disk", "prefetching", "unreadable",
                                                           "lost",    "dropped"};
  return kNames[static_cast<size_t>(state)];
}

bool may_follow(HostCopyState from, HostCopyState to) noexcept {
  using enum HostCopyState;
  if (to == dropped) return from != dropped;
  switch (from) {
    case waiting:
      return to == in_slab || to == writing || to == lost;
    case in_slab:
      return to == spilling;
    case spilling:
      return to == in_both || to == in_slab;
    case in_both:
      return to == on_disk || to == in_slab;
    case writing:
      return to == on_disk || to == lost;
    case on_disk:
      return to == prefetching;
    case prefetching:
      return to == in_both || to == unreadable;
    case unreadable:
    case lost:
    case dropped:
      break;
  }
  return false;
}

void HostCopy::State::enter(HostCopyState state) {
  if (is(HostCopyState::dropped)) return;  // its move only has to end
  if (!may_follow(state_, state))
    throw std::logic_error(
        str("[host tier] a copy of ", bytes, " bytes is ", name(state_), ", which ", name(state), " may not follow"));
  state_ = state;
}

}  // namespace spillway::swap
