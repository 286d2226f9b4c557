#include "ddl/ordered_sum.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace spillway::ddl {
namespace {

/// Few enough to stay in the first-level cache beside one block of a term.
constexpr int64_t kBlock = 1024;

void add(float* sum, const float* a, const float* b, int64_t size) {
  for (int64_t k = 0; k < size; ++k) sum[k] = a[k] + b[k];
}

}  // namespace

void ordered_sum(float* target, std::span<const float* const> terms, int64_t count, float divisor) {
  if (terms.size() == 1) {
    if (terms[0] != target) std::copy_n(terms[0], count, target);
    if (divisor != 1.0f) std::for_each_n(target, count, [=](float& x) { x /= divisor; });
    return;
  }
  // Multiplying by the inverse of a power of two gives the same bits, several times faster.
  int exponent = 0;
  const bool power_of_two = std::frexp(divisor, &exponent) == 0.5f;
  std::array<float, kBlock> sum;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t size = std::min(kBlock, count - begin);
    add(sum.data(), terms[0] + begin, terms[1] + begin, size);
    for (const float* term : terms.subspan(2)) {
      add(sum.data(), sum.data(), term + begin, size);
    }
    float* result = target + begin;
    if (power_of_two) {
      const float inverse = 1.0f / divisor;
      for (int64_t k = 0; k < size; ++k) result[k] = sum[k] * inverse;
    } else {
      for (int64_t k = 0; k < size; ++k) result[k] = sum[k] / divisor;
    }
  }
}

}  // namespace spillway::ddl
