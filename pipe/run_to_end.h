/// The loop that runs ranks which wait for each other.
#pragma once
#include <cstdint>
#include <optional>

namespace spillway::pipe {

/// Runs each rank in turn as far as it comes, until none can go on. `advance(rank)` does one thing of a rank that is
/// not at its end, and returns false where the rank must wait for another one. Returns the first rank that waits for
/// ever; nothing when all ranks are at their ends. Cost: an advance for each thing, and one for each time that a rank
/// waits.
template <class AtEnd, class Advance>
std::optional<int> run_to_end(int64_t ranks, const AtEnd& at_end, const Advance& advance) {
  for (bool moved = true; moved;) {
    moved = false;
    for (int rank = 0; rank < ranks; ++rank)
      while (!at_end(rank) && advance(rank)) moved = true;
  }
  for (int rank = 0; rank < ranks; ++rank)
    if (!at_end(rank)) return rank;
  return std::nullopt;
}

}  // namespace spillway::pipe
