/// The limit of the host memory that this process may use: the machine's memory, or less by its cgroups.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

namespace spillway {

struct MemoryLimit {
  int64_t bytes = 0;
  /// The origin of the limit for messages: `the machine's memory`, or the file that sets it
  /// (`/sys/fs/cgroup/job/memory.max`); of a share also its part (`1/4 of …`).
  std::string source;
};

/// Returns the smallest of the machine's memory and the limits of this process's cgroups. Version 2 limits by
/// memory.max and memory.high, version 1 by memory.limit_in_bytes and memory.stat's hierarchical_memory_limit. Every
/// folder from the process's own up to the mount point counts. A file that is absent, unreadable or says `max` sets no
/// limit. RLIMIT_MEMLOCK does not count, because it holds for mlock and for buffers registered with io_uring; CUDA's
/// driver pins pages without it. `root` stands for `/`. Cost: a few small files.
MemoryLimit host_memory_limit(const std::filesystem::path& root = "/");

/// Returns the part of `limit` that pages of one of `ranks` ranks of a host may take by default. Ranks take equal
/// parts. Memory that is `pinned`, like the pages of a GPU, may be half of the limit, because it cannot be swapped out.
MemoryLimit share_for_pages(const MemoryLimit& limit, bool pinned, int ranks);

}  // namespace spillway
