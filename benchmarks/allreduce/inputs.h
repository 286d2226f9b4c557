/// The values that ranks put into a collective that is measured, and the result that must come out.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "benchmarks/allreduce/problem.h"

namespace spillway::tools {

/// Returns the element type with a name such as `float32`, which is ddl::name_of(Element). Throws BadRequest naming
/// `name` and the allowed names.
ddl::Element parse_element(std::string_view name);
/// Returns the reduction of `sum`, `average`, `max` or `min`. Throws BadRequest naming `name` and the allowed names.
ddl::Reduction parse_reduction(std::string_view name);
/// Returns a name that parse_reduction() takes.
std::string_view name_of_op(ddl::Reduction reduction);

/// Writes a rank's contribution: small whole numbers, which every type holds and whose sums do not depend on the order.
/// They follow the hash of an element's position, so a vector that is shifted by any distance has other values. `begin`
/// is the position of the first element.
void contribute(std::span<std::byte> elements, ddl::Element element, int rank, int64_t begin = 0);
std::vector<std::byte> contribution(ddl::Element element, int rank, int64_t count);

/// The result that a rank must get, bit for bit.
class Expected {
 public:
  Expected(const Problem& problem, int rank, int ranks);
  /// Makes the result of an allreduce of any length, on every rank.
  Expected(ddl::Element element, ddl::Reduction reduction, int ranks);
  /// Returns how many elements of `result`, which begins where the rank's result does, have a wrong value.
  int64_t count_wrong(std::span<const std::byte> result) const;

 private:
  /// A range of elements whose values follow one pattern.
  struct Segment {
    ddl::Range elements;
    std::vector<std::byte> pattern;
  };
  int64_t count_wrong(std::span<const std::byte> result, int64_t begin, const Segment& segment) const;

  ddl::Element element_;
  int64_t begin_ = 0;
  std::vector<Segment> segments_;
};

}  // namespace spillway::tools
