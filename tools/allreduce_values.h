/// What ranks put into an allreduce that is measured, and what must come out.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "ddl/element.h"

namespace spillway::tools {

/// `float32`, …: ddl::name_of(Element). Throws BadRequest naming `name` and what is allowed.
ddl::Element element_named(std::string_view name);
/// `sum`, `average`, `max`, `min`. Throws BadRequest likewise.
ddl::Reduction reduction_named(std::string_view name);

/// What a rank contributes: `count` small whole numbers, which every type holds and whose sums do not depend on the
/// order.
std::vector<std::byte> contribution(ddl::Element element, int rank, int64_t count);

/// What all ranks must get, bit for bit.
class Expected {
 public:
  Expected(ddl::Element element, ddl::Reduction reduction, int ranks);
  /// How many elements of `result` are something else.
  int64_t count_wrong(std::span<const std::byte> result) const;

 private:
  size_t element_bytes_;
  std::vector<std::byte> pattern_;  ///< repeats itself in the result
};

}  // namespace spillway::tools
