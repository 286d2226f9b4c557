#include "core/memory/arena.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "core/bytes.h"

namespace spillway {

Arena::Arena(MemoryRange range, int64_t capacity_bytes) : range_(std::move(range)), capacity_bytes_(capacity_bytes) {
  free_.give(0, range_.bytes());
}

void* Arena::try_allocate(int64_t bytes) {
  std::lock_guard lock(mutex_);
  if (!fits_locked(bytes)) return nullptr;
  void* data = nullptr;
  if (bytes < kSmallBytes)
    data = std::aligned_alloc(kAlignment, round_up(std::max<int64_t>(bytes, 1), kAlignment));
  else
    data = range_.data() + *free_.take(bytes);
  if (data) peak_bytes_ = std::max(peak_bytes_, used_bytes_ += bytes);
  return data;
}

void Arena::deallocate(void* data, int64_t bytes) noexcept {
  if (deallocation_observer_) deallocation_observer_(data, bytes);
  std::lock_guard lock(mutex_);
  used_bytes_ -= bytes;
  if (bytes < kSmallBytes)
    std::free(data);
  else
    free_.give(static_cast<char*>(data) - range_.data(), bytes);
}

bool Arena::fits(int64_t bytes) const noexcept {
  std::lock_guard lock(mutex_);
  return fits_locked(bytes);
}

bool Arena::fits_locked(int64_t bytes) const noexcept {
  return bytes <= capacity_bytes_ - used_bytes_ && (bytes < kSmallBytes || bytes <= free_.largest());
}

int64_t Arena::used_bytes() const noexcept {
  std::lock_guard lock(mutex_);
  return used_bytes_;
}
int64_t Arena::peak_bytes() const noexcept {
  std::lock_guard lock(mutex_);
  return peak_bytes_;
}

int64_t default_arena_bytes() {
  return 2 * ::sysconf(_SC_PHYS_PAGES) * ::sysconf(_SC_PAGE_SIZE);
}

}  // namespace spillway
