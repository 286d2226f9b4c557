#include "core/memory_range.h"

#include <sys/mman.h>

#include <cerrno>
#include <system_error>

#include "core/bytes.h"

namespace spillway {

MemoryRange reserve_memory(int64_t bytes) {
  const int64_t rounded = round_up(bytes, 4096);
  void* range = ::mmap(nullptr, static_cast<size_t>(rounded), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED)
    throw std::system_error(errno, std::generic_category(), "[memory] cannot reserve " + format_bytes(rounded));
  // Fewer, larger page faults; an error only means that the kernel has no huge pages to give.
  (void)::madvise(range, static_cast<size_t>(rounded), MADV_HUGEPAGE);
  return {static_cast<char*>(range), rounded,
          [](char* data, int64_t size) { ::munmap(data, static_cast<size_t>(size)); }};
}

}  // namespace spillway
