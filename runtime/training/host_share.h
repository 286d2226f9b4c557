/// How the ranks of a host share its memory.
#pragma once
#include <cstdint>

#include "core/bytes.h"

namespace spillway {

/// The host budget, in bytes, of a rank whose user gives none. Memory that is `pinned`, as pages of a card are, may be
/// half of the host's: several ranks take equal parts of it, and one alone is held to that by its device. Else there is
/// no limit but the machine's.
constexpr int64_t host_share(bool pinned, int ranks_of_host, int64_t host_memory_bytes) {
  return pinned && ranks_of_host > 1 ? host_memory_bytes / 2 / ranks_of_host : kUnlimitedBytes;
}

}  // namespace spillway
