/// The rates of the copies and messages of a device, as a simulated step takes them.
#pragma once
#include <algorithm>

namespace spillway::swap {

/// Rates of the copy lanes while operators run.
struct LinkRates {
  double out_bytes_per_second = 4e9;
  double in_bytes_per_second = 4e9;
  /// Seconds that compute loses for each second of copying, because they share cores and the memory bus.
  double compute_slowdown = 0;
  /// Seconds that compute loses for each second of a message, because they share cores.
  double message_slowdown = 0;
  /// The rates of pages that the host has no room for.
  double to_disk_bytes_per_second = 1e9;
  double from_disk_bytes_per_second = 1e9;
};

/// Returns the seconds that a rank's compute loses for each second of one more thread of the rank: 0 where the `cores`
/// of the host are more than the `threads` of all its ranks. Else that thread takes its time from those of its rank.
inline double loss_beside_a_thread(int ranks_of_host, int threads_of_rank, int cores) {
  return ranks_of_host * threads_of_rank < cores ? 0 : 1.0 / std::min(threads_of_rank, cores);
}

}  // namespace spillway::swap
