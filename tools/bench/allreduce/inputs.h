/// The values that ranks put into a collective that is measured, and what must come out.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tools/bench/allreduce/problem.h"

namespace spillway::tools {

/// `float32`, …: ddl::name_of(Element). Throws BadRequest naming `name` and what is allowed.
ddl::Element element_named(std::string_view name);
/// `sum`, `average`, `max`, `min`. Throws BadRequest likewise.
ddl::Reduction reduction_named(std::string_view name);
/// A name that reduction_named() takes.
std::string_view name_of_op(ddl::Reduction reduction);

/// Writes a rank's contribution: small whole numbers, which every type holds and whose sums do not depend on the order.
/// They follow the hash of an element's position, so a vector that is shifted by any distance is another one.
/// `begin` is the position of the first.
void contribute(std::span<std::byte> elements, ddl::Element element, int rank, int64_t begin = 0);
std::vector<std::byte> contribution(ddl::Element element, int rank, int64_t count);

/// The result that a rank must get, bit for bit.
class Expected {
 public:
  Expected(const Problem& problem, int rank, int ranks);
  /// For an allreduce of any length, on every rank.
  Expected(ddl::Element element, ddl::Reduction reduction, int ranks);
  /// How many elements of `result`, which begins where the rank's result does, are something else.
  int64_t count_wrong(std::span<const std::byte> result) const;

 private:
  /// Elements whose values follow one pattern.
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
