// Windows of host copies in the memory of a device that the host does not reach.
#include <vector>

#include "swap/tiers/host_copy_state.h"
#include "swap/tiers/host_tier.h"

namespace spillway::swap {

/// Records the last copy of a window. A lane's copies end in order, so the last one stands for all: until then the
/// copy's room must stay as it is.
Ticket HostTier::record_read(State& copy, Ticket last) {
  std::lock_guard lock(mutex_);
  copy.device = last;
  return last;
}

Ticket HostTier::record_written(State& copy, Ticket last) {
  std::lock_guard lock(mutex_);
  copy.filled = copy.device = last;
  return last;
}

/// Reads a window. Joining the last copy orders compute, and so every copy that is started from here on, behind it.
Ticket HostTier::read_window(const HostCopy& copy, const WindowCopy& window, void* device) {
  State& state = *copy.state_;
  Pin pin(*this, state);
  settle(state, &Ticket::order_compute_after);
  const Place place = place_to_read(state);
  Ticket last;
  char* to = static_cast<char*>(device);
  if (place.block) {
    const char* from = static_cast<const char*>(place.block->data);
    window.for_each_run(
        [&](int64_t page, int64_t memory) { last = in_.copy(to + memory, from + page, window.run_bytes); });
    return record_read(state, last);
  }
  // The disk may fail, so no copy is under way from this memory before all of it has been read.
  std::vector<char> staging(window.bytes());
  char* run = staging.data();
  window.for_each_run([&](int64_t page, int64_t) {
    disk_->read_range(place.disk, page, window.run_bytes, run);
    run += window.run_bytes;
  });
  run = staging.data();
  window.for_each_run([&](int64_t, int64_t memory) {
    last = in_.copy(to + memory, run, window.run_bytes);
    run += window.run_bytes;
  });
  last.wait();
  return last;
}

Ticket HostTier::write_window(HostCopy& copy, const WindowCopy& window, const void* device) {
  State& state = *copy.state_;
  Pin pin(*this, state);
  settle(state, &Ticket::order_compute_after);
  const Place place = place_to_write(state);
  Ticket last;
  const char* from = static_cast<const char*>(device);
  if (place.block) {
    char* to = static_cast<char*>(place.block->data);
    window.for_each_run(
        [&](int64_t page, int64_t memory) { last = out_.copy(to + page, from + memory, window.run_bytes); });
    return record_written(state, last);
  }
  std::vector<char> staging(window.bytes());
  char* run = staging.data();
  window.for_each_run([&](int64_t, int64_t memory) {
    last = out_.copy(run, from + memory, window.run_bytes);
    run += window.run_bytes;
  });
  last.wait();
  run = staging.data();
  window.for_each_run([&](int64_t page, int64_t) {
    disk_->write_range(place.disk, page, window.run_bytes, run);
    run += window.run_bytes;
  });
  return last;
}

}  // namespace spillway::swap
