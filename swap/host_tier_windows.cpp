// Windows of host copies in the memory of a device that the host does not reach.
#include <vector>

#include "swap/host_tier.h"
#include "swap/host_tier_parts.h"

namespace spillway {

/// What compute is given from here on, and so every copy that is started after that, comes after the last page-out or
/// window of the copy.
void HostTier::join_arrival(State& copy) {
  std::unique_lock lock(mutex_);
  const Ticket arrival = copy.device;
  lock.unlock();
  arrival.join();
}

/// A lane's copies end in order, so the last one stands for all: until then the copy's room must stay what it is.
Ticket HostTier::note_copies(State& copy, Ticket last) {
  std::lock_guard lock(mutex_);
  copy.device = last;
  return last;
}

Ticket HostTier::read_window(const HostCopy& copy, const WindowCopy& window, void* device) {
  State& state = *copy.state_;
  Pin pin(*this, state);
  join_arrival(state);
  std::unique_lock lock(mutex_);
  const auto block = state.block;
  const auto disk = state.disk;
  lock.unlock();
  Ticket last;
  char* to = static_cast<char*>(device);
  if (block) {
    const char* from = static_cast<const char*>(block->data);
    window.for_each_run(
        [&](int64_t page, int64_t memory) { last = in_.copy(to + memory, from + page, window.run_bytes); });
    return note_copies(state, last);
  }
  std::vector<char> staging(static_cast<size_t>(window.bytes()));
  char* run = staging.data();
  window.for_each_run([&](int64_t page, int64_t memory) {
    disk_->read_range(disk, page, window.run_bytes, run);
    last = in_.copy(to + memory, run, window.run_bytes);
    run += window.run_bytes;
  });
  last.wait();
  return last;
}

Ticket HostTier::write_window(HostCopy& copy, const WindowCopy& window, const void* device) {
  State& state = *copy.state_;
  Pin pin(*this, state);
  join_arrival(state);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !state.moving; });
  const auto block = state.block;
  const auto disk = state.disk;
  if (block) {  // what the disk has is old now
    state.disk.reset();
    state.stored = false;
  }
  lock.unlock();
  Ticket last;
  const char* from = static_cast<const char*>(device);
  if (block) {
    char* to = static_cast<char*>(block->data);
    window.for_each_run(
        [&](int64_t page, int64_t memory) { last = out_.copy(to + page, from + memory, window.run_bytes); });
    return note_copies(state, last);
  }
  std::vector<char> staging(static_cast<size_t>(window.bytes()));
  char* run = staging.data();
  window.for_each_run([&](int64_t, int64_t memory) {
    last = out_.copy(run, from + memory, window.run_bytes);
    run += window.run_bytes;
  });
  last.wait();
  run = staging.data();
  window.for_each_run([&](int64_t page, int64_t) {
    disk_->write_range(disk, page, window.run_bytes, run);
    run += window.run_bytes;
  });
  return last;
}

}  // namespace spillway
