/// The division of a matrix's columns into panels. LibTorch-free.
#pragma once
#include <cstdint>

namespace spillway::kfac {

/// The fewest panels of at most `most` columns, whose widths differ by one at most.
struct Panels {
  int64_t columns = 0;
  int64_t most = 1;

  int64_t count() const { return (columns + most - 1) / most; }
  /// Returns the first column of panel `k`; of the panel behind the last one, `columns`.
  int64_t begin(int64_t k) const { return k * columns / count(); }
  int64_t width(int64_t k) const { return begin(k + 1) - begin(k); }
};

}  // namespace spillway::kfac
