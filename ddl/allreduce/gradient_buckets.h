/// Which gradients travel together.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "ddl/comm/element.h"

namespace spillway::ddl {

/// A parameter as buckets see it.
struct GradientShape {
  Element element = Element::float32;
  int64_t count = 0;
};

/// Some elements of some gradients, one behind the other.
struct GradientBucket {
  struct Piece {
    size_t parameter = 0;
    Range range;         ///< of its elements, in the order of its memory
    int64_t offset = 0;  ///< in the bucket
  };
  Element element = Element::float32;
  std::vector<Piece> pieces{};
  int64_t count = 0;  ///< elements, flags included
  /// The last bucket ends with an element for each parameter, by which ranks tell each other which gradients they have.
  int64_t flags = 0;

  int64_t bytes() const { return count * element_bytes(element); }
};

/// Cuts the gradients, in `order` (each parameter once), into buckets of at most `bucket_bytes` bytes (flags apart) and
/// one type each; larger gradients go through several. None where there are no parameters.
std::vector<GradientBucket> cut_into_buckets(std::span<const GradientShape> parameters, std::span<const size_t> order,
                                             int64_t bucket_bytes);

}  // namespace spillway::ddl
