#include "core/host_slab.h"

#include <algorithm>

#include "core/bytes.h"
#include "core/error.h"

namespace spillway {

void* HostSlab::allocate(int64_t bytes) {
  if (void* data = try_allocate(bytes)) return data;
  const int64_t missing = bytes - (capacity_bytes() - used_bytes());
  throw OutOfBudget(
      str("[host tier] the host budget of ", format_bytes(capacity_bytes()), " is too small: ",
          missing > 0 ? str("at least ", missing, " more bytes are needed") : std::string("what is free is in pieces"),
          " for a page of ", format_bytes(bytes), " beside the ", format_bytes(used_bytes()),
          " in use; give it more (--host-budget), or a directory to spill to (--disk)"),
      bytes, capacity_bytes());
}

}  // namespace spillway
