/// Which parts of a line of bytes are free.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace spillway {

/// Best-fit bookkeeping of offsets: an address range's, or a file's. Sizes are rounded up to kGranularity, so offsets
/// are multiples of it; freed neighbours merge. Not thread-safe. Cost: O(log free ranges).
class FreeRanges {
 public:
  static constexpr int64_t kGranularity = 4096;

  /// The offset of a range of `bytes`, from the smallest free range that holds it; the lowest among equals.
  std::optional<int64_t> take(int64_t bytes);
  /// Frees what was taken with the same `bytes`, or adds a range that was not there before.
  void give(int64_t offset, int64_t bytes);
  /// Bytes of the largest free range.
  int64_t largest() const noexcept { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }

 private:
  void insert(int64_t offset, int64_t bytes);
  void erase(std::map<int64_t, int64_t>::iterator range);

  std::map<int64_t, int64_t> by_offset_;           // offset → bytes
  std::set<std::pair<int64_t, int64_t>> by_size_;  // (bytes, offset)
};

}  // namespace spillway
