/// The counters of a pager's work so far.
#pragma once
#include <cstdint>

namespace spillway {

/// Counts, bytes and seconds since the pager was made.
struct PagerStats {
  int64_t bytes_out = 0;  ///< copied to the host
  int64_t bytes_in = 0;   ///< copied back
  int64_t page_outs = 0;
  int64_t page_ins = 0;
  int64_t demand_page_ins = 0;  ///< page-ins that no prefetch had started
  int64_t clean_drops = 0;      ///< evictions that needed no copy
  double exposed_seconds = 0;   ///< seconds that callers waited for copies
  int64_t discards = 0;         ///< evictions without a copy, of pages that can be made again
  int64_t replays = 0;          ///< discarded pages that were made again
  double replay_seconds = 0;    ///< seconds that the replays took
  int64_t parked_bytes = 0;     ///< managed memory whose bytes are on the host now
  int64_t parked_peak_bytes = 0;
};

}  // namespace spillway
