#include "core/host_slab.h"

#include "core/bytes.h"
#include "core/error.h"

namespace spillway {

void* HostSlab::allocate(int64_t bytes) {
  if (void* data = arena_.try_allocate(bytes)) return data;
  throw OutOfBudget(str("[host slab] no room for a page of ", format_bytes(bytes), ": ", format_bytes(used_bytes()),
                        " of ", format_bytes(capacity_bytes()), " are used"),
                    bytes, capacity_bytes());
}

}  // namespace spillway
