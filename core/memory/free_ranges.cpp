#include "core/memory/free_ranges.h"

#include <iterator>

#include "core/bytes.h"

namespace spillway {

std::optional<int64_t> FreeRanges::take(int64_t bytes) {
  const int64_t wanted = round_up(bytes, kGranularity);
  auto fit = by_size_.lower_bound({wanted, 0});
  if (fit == by_size_.end()) return std::nullopt;
  auto [size, offset] = *fit;
  erase(by_offset_.find(offset));
  if (size > wanted) insert(offset + wanted, size - wanted);
  return offset;
}

void FreeRanges::give(int64_t offset, int64_t bytes) {
  int64_t size = round_up(bytes, kGranularity);
  auto next = by_offset_.lower_bound(offset);
  if (next != by_offset_.end() && next->first == offset + size) {
    size += next->second;
    auto merged = next++;
    erase(merged);
  }
  if (next != by_offset_.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second == offset) {
      offset = before->first;
      size += before->second;
      erase(before);
    }
  }
  insert(offset, size);
}

void FreeRanges::insert(int64_t offset, int64_t bytes) {
  by_offset_.emplace(offset, bytes);
  by_size_.emplace(bytes, offset);
}

void FreeRanges::erase(std::map<int64_t, int64_t>::iterator range) {
  by_size_.erase({range->second, range->first});
  by_offset_.erase(range);
}

}  // namespace spillway
