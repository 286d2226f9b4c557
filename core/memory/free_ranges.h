/// A record of the free ranges in an address range or a file.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace spillway {

/// Best-fit bookkeeping of offsets in an address range or a file. Offsets are multiples of kGranularity, because sizes
/// are rounded up to it. Neighboring free ranges merge. Not thread-safe. Cost: O(log free ranges).
class FreeRanges {
 public:
  static constexpr int64_t kGranularity = 4096;

  /// Takes a range of `bytes` from the smallest free range that holds it, the lowest among equals. Returns the offset,
  /// or nullopt when no range is large enough.
  std::optional<int64_t> take(int64_t bytes);
  /// Frees a range that was taken with the same `bytes`, or adds a range that was not there before.
  void give(int64_t offset, int64_t bytes);
  /// Returns the bytes of the largest free range.
  int64_t largest() const noexcept { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }

 private:
  void insert(int64_t offset, int64_t bytes);
  void erase(std::map<int64_t, int64_t>::iterator range);

  std::map<int64_t, int64_t> by_offset_;           // offset → bytes
  std::set<std::pair<int64_t, int64_t>> by_size_;  // (bytes, offset)
};

}  // namespace spillway
