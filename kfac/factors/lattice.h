/// Lattices of positions, over which the factors of a layer are estimated.
///
/// A factor is a sum over a layer's positions: a convolution's output positions, or the rows of a Linear layer. The sum
/// over every s-th position, times s, is an unbiased estimate of it when the lattice's start is drawn uniformly. A
/// start that is drawn anew for each update lets the running average converge to the exact factor; a fixed start would
/// leave out the same positions for ever. Precedents: max_num_patches_per_dimension of TensorFlow's K-FAC; SKFAC (Tang
/// et al., CVPR 2021).
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace spillway::kfac {

/// The positions start[d] + i·step[d] along each spatial dimension d, i ≥ 0, with 0 ≤ start[d] < step[d].
struct Lattice {
  std::vector<int64_t> start, step;

  /// Returns the lattice of all positions.
  static Lattice whole(size_t dims);
  bool is_whole() const { return weight() == 1; }
  /// Returns Π step, by which a sum over the lattice is multiplied.
  int64_t weight() const;
  /// Returns the number of its positions along dimension `d` of `size` positions.
  int64_t count(size_t d, int64_t size) const { return size <= start[d] ? 0 : (size - start[d] - 1) / step[d] + 1; }
  /// Returns the largest such number, wherever it starts. An update of a factor makes room for so many, whatever its
  /// start, so that all updates do the same operators on the same memory, and a schedule made in one fits the next.
  int64_t places(size_t d, int64_t size) const { return (size + step[d] - 1) / step[d]; }
};

/// Returns a lattice over positions of sizes `spatial`, in each of `samples` samples, on which at least `rows`
/// positions remain wherever it starts. Steps grow on the dimension that has most positions left, the first such one,
/// until one more would leave too few. They are odd: an even step meets the same phase of an input that was upsampled
/// by two, or of a strided one, at every position. `seed` draws the start. The lattice depends on the arguments alone.
Lattice sample_lattice(int64_t samples, std::span<const int64_t> spatial, int64_t rows, uint64_t seed);

}  // namespace spillway::kfac
