/// Elements of any type, as doubles and back.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "ddl/allreduce/combine.h"
#include "ddl/comm/element.h"
#include "tests/support/ddl/contribution.h"

namespace spillway::ddl::testing {

/// Returns `values` as elements of any type, and as_doubles() converts them back. They use finish() and combine(),
/// which have tests of their own.
inline std::vector<std::byte> as_elements(Element element, const std::vector<double>& values) {
  const auto count = static_cast<int64_t>(values.size());
  std::vector<std::byte> bytes(values.size() * static_cast<size_t>(element_bytes(element)));
  const auto convert = [&](auto type) {
    std::vector<decltype(type)> typed(values.begin(), values.end());
    finish(element, Reduction::sum, bytes.data(), typed.data(), count, 1);
  };
  if (element == Element::float64)
    convert(double{});
  else if (element == Element::int32)
    convert(int32_t{});
  else if (element == Element::int64)
    convert(int64_t{});
  else
    convert(float{});
  return bytes;
}

inline std::vector<double> as_doubles(Element element, const std::vector<std::byte>& bytes) {
  const auto count = static_cast<int64_t>(bytes.size()) / element_bytes(element);
  const auto convert = [&](auto type) {
    std::vector<decltype(type)> typed(static_cast<size_t>(count));
    const Term term{bytes.data(), false};
    combine(element, Reduction::sum, typed.data(), {&term, 1}, count);
    return std::vector<double>(typed.begin(), typed.end());
  };
  if (element == Element::float64) return convert(double{});
  if (element == Element::int32) return convert(int32_t{});
  if (element == Element::int64) return convert(int64_t{});
  return convert(float{});
}

/// Returns rank `rank`'s elements, as they are after rounding.
inline std::vector<double> contribution_as(Element element, int rank, int64_t count) {
  std::vector<double> values;
  for (const float x : contribution(rank, count)) values.push_back(100.0 * x);
  return as_doubles(element, as_elements(element, values));
}

inline double reduced(Reduction reduction, const std::vector<double>& terms, bool integral) {
  if (reduction == Reduction::maximum) return *std::max_element(terms.begin(), terms.end());
  if (reduction == Reduction::minimum) return *std::min_element(terms.begin(), terms.end());
  const double sum = std::accumulate(terms.begin(), terms.end(), 0.0);
  if (reduction == Reduction::sum) return sum;
  const double average = sum / static_cast<double>(terms.size());
  return integral ? std::trunc(average) : average;
}

}  // namespace spillway::ddl::testing
