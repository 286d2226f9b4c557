/// The handling of fork() without exec() in a process whose threads page.
#pragma once

namespace spillway {

class DeviceMemory;

/// Lets children of fork() allocate from a device's `memory`, which must live as long as the process. A child has none
/// of the threads that page. So in a child of a process that pages on the device, its budget is unlimited, no room is
/// made, and memory of pages is not given back. Call it once for each device. Thread-safe.
void survive_forks(DeviceMemory& memory);

/// Returns true when this process is the child of a fork() of a process that paged, on any device. Tensors that were
/// absent at the fork stay absent in the child.
bool forked_while_paging() noexcept;

}  // namespace spillway
