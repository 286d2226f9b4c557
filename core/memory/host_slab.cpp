#include "core/memory/host_slab.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "core/bytes.h"
#include "core/error.h"

namespace spillway {
namespace {

/// Keeps the range from children of fork(). A device or disk may be writing to the range during a fork(). Without this,
/// the page that it writes to could become the child's copy instead of this process's (open(2), O_DIRECT).
MemoryRange without_children(MemoryRange range) {
  (void)::madvise(range.data(), range.bytes(), MADV_DONTFORK);
  return range;
}

}  // namespace

HostSlab::HostSlab(MemoryRange range, int64_t capacity_bytes, std::string limited_by)
    : arena_(without_children(std::move(range)), capacity_bytes), limited_by_(std::move(limited_by)) {}

void* HostSlab::allocate(int64_t bytes) {
  if (void* data = try_allocate(bytes)) return data;
  const int64_t missing = bytes - (capacity_bytes() - used_bytes());
  const std::string limit = limited_by_.empty() ? "" : str(" (", limited_by_, ")");
  const char* advice = limited_by_.empty() ? "give it more (--host-budget), or a directory to spill to (--disk)"
                                           : "give the process more, or a directory to spill to (--disk)";
  throw OutOfBudget(
      str("[host tier] the host budget of ", format_bytes(capacity_bytes()), limit, " is too small: ",
          missing > 0 ? str("at least ", missing, " more bytes are needed") : std::string("what is free is in pieces"),
          " for a page of ", format_bytes(bytes), " beside the ", format_bytes(used_bytes()), " in use; ", advice),
      bytes, capacity_bytes());
}

}  // namespace spillway
