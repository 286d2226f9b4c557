#include "core/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "core/bytes.h"

namespace spillway {
namespace {
constexpr int64_t kGranularity = 4096;
}

Arena::Arena(int64_t capacity_bytes) : capacity_bytes_(round_up(capacity_bytes, kGranularity)) {
  void* range = ::mmap(nullptr, static_cast<size_t>(capacity_bytes_), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED)
    throw std::system_error(errno, std::generic_category(), "[arena] cannot reserve " + format_bytes(capacity_bytes_));
  base_ = static_cast<char*>(range);
  // Fewer, larger page faults; an error only means that the kernel has no huge pages to give.
  (void)::madvise(base_, static_cast<size_t>(capacity_bytes_), MADV_HUGEPAGE);
  insert_free(0, capacity_bytes_);
}

Arena::~Arena() {
  ::munmap(base_, static_cast<size_t>(capacity_bytes_));
}

void* Arena::try_allocate(int64_t bytes) {
  std::lock_guard lock(mutex_);
  void* data = nullptr;
  if (bytes < kSmallBytes) {
    data = std::aligned_alloc(kAlignment, static_cast<size_t>(round_up(std::max<int64_t>(bytes, 1), kAlignment)));
  } else {
    int64_t wanted = round_up(bytes, kGranularity);
    auto fit = free_by_size_.lower_bound({wanted, 0});
    if (fit == free_by_size_.end()) return nullptr;
    auto [size, offset] = *fit;
    erase_free(free_by_offset_.find(offset));
    if (size > wanted) insert_free(offset + wanted, size - wanted);
    data = base_ + offset;
  }
  if (data) peak_bytes_ = std::max(peak_bytes_, used_bytes_ += bytes);
  return data;
}

void Arena::deallocate(void* data, int64_t bytes) noexcept {
  if (deallocation_observer_) deallocation_observer_(data, bytes);
  std::lock_guard lock(mutex_);
  used_bytes_ -= bytes;
  if (bytes < kSmallBytes) {
    std::free(data);
    return;
  }
  int64_t offset = static_cast<char*>(data) - base_;
  int64_t size = round_up(bytes, kGranularity);
  auto next = free_by_offset_.lower_bound(offset);
  if (next != free_by_offset_.end() && next->first == offset + size) {
    size += next->second;
    auto merged = next++;
    erase_free(merged);
  }
  if (next != free_by_offset_.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second == offset) {
      offset = before->first;
      size += before->second;
      erase_free(before);
    }
  }
  insert_free(offset, size);
}

int64_t Arena::used_bytes() const noexcept {
  std::lock_guard lock(mutex_);
  return used_bytes_;
}
int64_t Arena::peak_bytes() const noexcept {
  std::lock_guard lock(mutex_);
  return peak_bytes_;
}

void Arena::insert_free(int64_t offset, int64_t bytes) {
  free_by_offset_.emplace(offset, bytes);
  free_by_size_.emplace(bytes, offset);
}

void Arena::erase_free(std::map<int64_t, int64_t>::iterator range) {
  free_by_size_.erase({range->second, range->first});
  free_by_offset_.erase(range);
}

int64_t default_arena_bytes() {
  return 2 * ::sysconf(_SC_PHYS_PAGES) * ::sysconf(_SC_PAGE_SIZE);
}

}  // namespace spillway
