/// The cut of a model into stages.
#pragma once
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace spillway::pipe {

/// One part of a model, which no cut divides.
struct Part {
  double seconds = 0;  ///< forward and backward of a micro-batch
  int64_t bytes = 0;   ///< memory that its stage holds for it
};

/// Cuts parts, in their order, into `stages` stages of at least one part each, none of which holds more than
/// `bytes_limit`. Returns the number of parts of each stage. The longest stage is as short as can be, because it sets
/// the pace. Of such cuts the result has the least Σ seconds², then the longer stages at the end, where fewer
/// micro-batches are in flight. Cost: O(parts² · stages). Throws BadRequest where there are fewer parts than stages, or
/// naming the smallest limit that would do.
std::vector<int> cut(std::span<const Part> parts, int stages,
                     int64_t bytes_limit = std::numeric_limits<int64_t>::max());

}  // namespace spillway::pipe
