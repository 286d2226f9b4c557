#include "kfac/factors/lattice.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>

namespace spillway::kfac {

Lattice Lattice::whole(size_t dims) {
  return {std::vector<int64_t>(dims, 0), std::vector<int64_t>(dims, 1)};
}

int64_t Lattice::weight() const {
  return std::accumulate(step.begin(), step.end(), int64_t{1}, std::multiplies<>());
}

Lattice sample_lattice(int64_t samples, std::span<const int64_t> spatial, int64_t rows, uint64_t seed) {
  auto lattice = Lattice::whole(spatial.size());
  std::vector<int64_t> left(spatial.begin(), spatial.end());  // positions that remain at least
  while (!left.empty()) {
    const size_t widest = std::max_element(left.begin(), left.end()) - left.begin();
    // The next odd step that leaves fewer positions; smaller ones would only move the lattice's end.
    const int64_t fewer = left[widest] - 1;
    if (fewer < 1) break;
    const int64_t step = (spatial[widest] / (fewer + 1) + 1) | 1;
    const int64_t kept = spatial[widest] / step;
    int64_t remaining = samples * kept;
    for (size_t d = 0; d < left.size(); ++d)
      if (d != widest) remaining *= left[d];
    if (kept < 1 || remaining < rows) break;
    lattice.step[widest] = step;
    left[widest] = kept;
  }
  std::mt19937_64 random(seed);
  for (size_t d = 0; d < spatial.size(); ++d)
    lattice.start[d] = static_cast<int64_t>(random() % static_cast<uint64_t>(lattice.step[d]));
  return lattice;
}

}  // namespace spillway::kfac
