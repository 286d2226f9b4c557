#include "core/memory/fork.h"

#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <system_error>

#include "core/memory/device_memory.h"

namespace spillway {
namespace {

// There is one memory per process, because LibTorch has one CPU allocator. It is global because handlers of fork() get
// no arguments.
std::atomic<DeviceMemory*> the_memory = nullptr;
std::atomic<bool> is_orphan = false;

void before_fork() {
  the_memory.load()->lock_for_fork();
}
void after_fork_in_parent() {
  the_memory.load()->unlock_after_fork();
}
void after_fork_in_child() {
  DeviceMemory& memory = *the_memory.load();
  memory.unlock_after_fork();
  if (!memory.has_reclaimer()) return;
  memory.orphan();
  is_orphan = true;
}

}  // namespace

void survive_forks(DeviceMemory& memory) {
  the_memory = &memory;
  if (const int error = ::pthread_atfork(&before_fork, &after_fork_in_parent, &after_fork_in_child))
    throw std::system_error(error, std::generic_category(), "[memory] pthread_atfork");
}

bool forked_while_paging() noexcept {
  return is_orphan.load(std::memory_order_relaxed);
}

}  // namespace spillway
