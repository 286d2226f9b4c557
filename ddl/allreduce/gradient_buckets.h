/// Buckets of gradients that travel together.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "ddl/comm/element.h"

namespace spillway::ddl {

/// The element type and the element count of a parameter, which decide its place in buckets.
struct GradientShape {
  Element element = Element::float32;
  int64_t count = 0;
};

/// Some elements of some gradients, one behind the other.
struct GradientBucket {
  /// Some elements of one gradient.
  struct Piece {
    size_t parameter = 0;
    Range range;         ///< range of its elements, in the order of its memory
    int64_t offset = 0;  ///< place in the bucket, in elements
  };
  Element element = Element::float32;
  std::vector<Piece> pieces{};
  int64_t count = 0;  ///< elements, flags included
  /// The number of flags. The last bucket ends with an element for each parameter, by which ranks tell each other which
  /// gradients they have.
  int64_t flags = 0;

  int64_t bytes() const { return count * element_bytes(element); }
};

/// Cuts the gradients, in `order` (each parameter once), into buckets of one type and at most `bucket_bytes` bytes each
/// (flags apart). Larger gradients go through several buckets. Returns none when there are no parameters.
std::vector<GradientBucket> cut_into_buckets(std::span<const GradientShape> parameters, std::span<const size_t> order,
                                             int64_t bucket_bytes);

}  // namespace spillway::ddl
