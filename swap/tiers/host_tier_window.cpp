// Windows of host copies in the memory of a device that the host does not reach.
#include <vector>

#include "swap/tiers/host_copy_state.h"
#include "swap/tiers/host_tier.h"

namespace spillway::swap {

/// Records a window's copy: until it is done the copy's room must stay as it is.
Ticket HostTier::record_read(State& copy, Ticket window) {
  std::lock_guard lock(mutex_);
  copy.device = window;
  return window;
}

Ticket HostTier::record_written(State& copy, Ticket window) {
  std::lock_guard lock(mutex_);
  copy.filled = copy.device = window;
  return window;
}

/// Reads a window. Joining the copy orders compute, and so every copy that is started from here on, behind it.
Ticket HostTier::read_window(const HostCopy& copy, const WindowCopy& window, void* device) {
  State& state = *copy.state_;
  Pin pin(*this, state);
  settle(state, &Ticket::order_compute_after);
  const Place place = place_to_read(state);
  if (place.block) {
    const char* from = static_cast<const char*>(place.block->data) + window.page_offset_bytes;
    return record_read(state, in_.copy_runs(device, from, window.out_of_page()));
  }
  // The disk may fail, so no copy is under way from this memory before all of it has been read.
  std::vector<char> staging(window.bytes());
  char* run = staging.data();
  window.for_each_run([&](int64_t page, int64_t) {
    disk_->read_range(place.disk, page, window.run_bytes, run);
    run += window.run_bytes;
  });
  const Ticket copied = in_.copy_runs(device, staging.data(), window.packed().out_of_page());
  copied.wait();
  return copied;
}

Ticket HostTier::write_window(HostCopy& copy, const WindowCopy& window, const void* device) {
  State& state = *copy.state_;
  Pin pin(*this, state);
  settle(state, &Ticket::order_compute_after);
  const Place place = place_to_write(state);
  if (place.block) {
    char* to = static_cast<char*>(place.block->data) + window.page_offset_bytes;
    return record_written(state, out_.copy_runs(to, device, window.into_page()));
  }
  std::vector<char> staging(window.bytes());
  const Ticket copied = out_.copy_runs(staging.data(), device, window.packed().into_page());
  copied.wait();
  char* run = staging.data();
  window.for_each_run([&](int64_t page, int64_t) {
    disk_->write_range(place.disk, page, window.run_bytes, run);
    run += window.run_bytes;
  });
  return copied;
}

}  // namespace spillway::swap
