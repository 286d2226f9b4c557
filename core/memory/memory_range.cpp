#include "core/memory/memory_range.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

#include "core/bytes.h"

namespace spillway {

MemoryRange reserve_memory(int64_t bytes) {
  const int64_t rounded = round_up(bytes, 4096);
  void* range = ::mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED)
    throw std::system_error(errno, std::generic_category(), "[memory] cannot reserve " + format_bytes(rounded));
  // Huge pages make fewer, larger page faults. An error only means that the kernel has no huge pages to give.
  (void)::madvise(range, rounded, MADV_HUGEPAGE);
  return {static_cast<char*>(range), rounded, [](char* data, int64_t size) { ::munmap(data, size); }};
}

MemoryRange reserve_memory_up_to(int64_t bytes) {
  constexpr int64_t kMin = 16 << 20;
  for (int64_t size = bytes;; size /= 2) {
    try {
      MemoryRange range = reserve_memory(size);
      if (size == bytes) return range;
    } catch (const std::system_error&) {
      if (size < 2 * kMin) throw;
      continue;
    }
    // Half of the addresses stay unreserved, because other code in this process needs addresses too.
    std::fprintf(stderr,
                 "[memory] the system grants no %s of addresses (see ulimit -v, vm.overcommit_memory): using %s\n",
                 format_bytes(bytes).c_str(), format_bytes(size / 2).c_str());
    return reserve_memory(size / 2);
  }
}

}  // namespace spillway
