/// fork() without exec(), beside threads that page.
#pragma once

namespace spillway {

class DeviceMemory;

/// Lets children of fork() allocate from `memory`, which must live as long as the process. A child has none of the
/// threads that page, so there the budget is unlimited, nobody makes room, and memory of pages is not given back.
void survive_forks(DeviceMemory& memory);

/// Whether this process is the child of a fork() of one that paged. Tensors that were absent then stay absent in it.
bool forked_while_paging() noexcept;

}  // namespace spillway
