/// One random case of the pager: the options that its seed draws, and the copy lanes that they name.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/memory/device_memory.h"
#include "core/timeline.h"
#include "tests/support/random/cases.h"

namespace spillway::testing {

/// A kind of copy lane. The last one breaks the promise of tickets.
enum class Lane { same_thread, worker, delayed, random, queued, flaky, early_ticket };

/// The options of one case, drawn from its seed.
struct Plan {
  uint64_t seed = 0;
  int64_t threads = 1;
  int64_t operations = 0;  // operations of each thread
  std::vector<int64_t> sizes = {};
  int64_t budget_bytes = 0;
  int64_t host_bytes = int64_t{1} << 28;
  int64_t small_bytes = 0;
  Lane out = Lane::worker, in = Lane::worker;
  bool disk = false;                   // a disk below the host
  bool replays = false;                // pages are discarded and made again
  bool writes_without_saying = false;  // a caller breaks its promise to declare writes

  bool host_may_be_full() const { return host_bytes < int64_t{1} << 28 && !disk; }
  int64_t largest_charge() const { return DeviceMemory::charge_of(*std::max_element(sizes.begin(), sizes.end())); }
};

/// Draws a case from its seed, within the limits.
Plan plan_of(uint64_t seed, const CaseLimits& limits);

/// Makes a copy lane whose delays and failures follow from the seed.
std::unique_ptr<Timeline> make_lane(Lane lane, uint64_t seed);

}  // namespace spillway::testing
