/// The share of a host's memory for each of its ranks.
#pragma once
#include <cstdint>

#include "core/bytes.h"

namespace spillway {

/// Returns the host budget, in bytes, of a rank whose user gives none. Memory that is `pinned`, like the pages of a
/// GPU, may be half of the host's memory. Several ranks take equal parts of that half; a single rank is held to it by
/// its device. Otherwise the machine's memory is the only limit.
constexpr int64_t host_share(bool pinned, int ranks_of_host, int64_t host_memory_bytes) {
  return pinned && ranks_of_host > 1 ? host_memory_bytes / 2 / ranks_of_host : kUnlimitedBytes;
}

}  // namespace spillway
