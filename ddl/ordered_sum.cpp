#include "ddl/ordered_sum.h"

#include <algorithm>
#include <array>

namespace spillway::ddl {
namespace {

/// Few enough to stay in the first-level cache beside one block of a term.
constexpr int64_t kBlock = 1024;

}  // namespace

void ordered_sum(float* target, std::span<const float* const> terms, int64_t count, float divisor) {
  std::array<float, kBlock> sum;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t size = std::min(kBlock, count - begin);
    std::copy_n(terms[0] + begin, size, sum.begin());
    for (const float* term : terms.subspan(1)) {
      const float* addend = term + begin;
      for (int64_t k = 0; k < size; ++k) sum[k] += addend[k];
    }
    if (divisor != 1.0f) {
      for (int64_t k = 0; k < size; ++k) sum[k] /= divisor;
    }
    std::copy_n(sum.begin(), size, target + begin);
  }
}

}  // namespace spillway::ddl
