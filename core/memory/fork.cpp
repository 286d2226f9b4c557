#include "core/memory/fork.h"

#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <mutex>
#include <system_error>
#include <vector>

#include "core/memory/device_memory.h"

namespace spillway {
namespace {

/// The memories of all devices. They are global because handlers of fork() get no arguments.
struct Memories {
  std::mutex mutex;  // held over a fork, so that the child finds the list whole
  std::vector<DeviceMemory*> all;
};
Memories& memories() {
  static auto* memories = new Memories();
  return *memories;
}
std::atomic<bool> is_orphan = false;

void before_fork() {
  memories().mutex.lock();
  for (DeviceMemory* memory : memories().all) memory->lock_for_fork();
}
void after_fork_in_parent() {
  for (DeviceMemory* memory : memories().all) memory->unlock_after_fork();
  memories().mutex.unlock();
}
void after_fork_in_child() {
  after_fork_in_parent();  // the same locks are the child's too
  for (DeviceMemory* memory : memories().all)
    if (memory->has_reclaimer()) {
      memory->orphan();
      is_orphan = true;
    }
}

}  // namespace

void survive_forks(DeviceMemory& memory) {
  {
    const std::lock_guard lock(memories().mutex);
    memories().all.push_back(&memory);
  }
  static const int error = ::pthread_atfork(&before_fork, &after_fork_in_parent, &after_fork_in_child);
  if (error) throw std::system_error(error, std::generic_category(), "[memory] pthread_atfork");
}

bool forked_while_paging() noexcept {
  return is_orphan.load(std::memory_order_relaxed);
}

}  // namespace spillway
