/// The median of numbers.
#pragma once
#include <algorithm>
#include <cstddef>
#include <vector>

namespace spillway {

/// Returns the middle value, or the mean of the middle two; 0 when there is none.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n == 0 ? 0 : n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

}  // namespace spillway
