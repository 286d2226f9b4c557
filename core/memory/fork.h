/// The handling of fork() without exec() in a process whose threads page.
#pragma once

namespace spillway {

class DeviceMemory;

/// Lets children of fork() allocate from `memory`, which must live as long as the process. A child has none of the
/// threads that page. So in a child the budget is unlimited, no room is made, and memory of pages is not given back.
void survive_forks(DeviceMemory& memory);

/// Returns true when this process is the child of a fork() of a process that paged. Tensors that were absent at the
/// fork stay absent in the child.
bool forked_while_paging() noexcept;

}  // namespace spillway
