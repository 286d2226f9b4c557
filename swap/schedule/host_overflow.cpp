#include "swap/schedule/host_overflow.h"

#include <algorithm>
#include <map>
#include <vector>

namespace spillway::swap {

AbsenceSet overflow(const StepTrace& trace, const std::vector<Eviction>& evictions, int64_t host_bytes) {
  AbsenceSet on_disk;
  if (host_bytes == kUnlimitedBytes) return on_disk;
  std::vector<Eviction> ordered = evictions;
  std::stable_sort(ordered.begin(), ordered.end(), [](const Eviction& a, const Eviction& b) { return a.at < b.at; });
  const auto count = std::ssize(trace.operators);
  std::multimap<int64_t, int32_t> on_host;  // slots by the operator that brings them back
  int64_t resident_bytes = 0;
  auto bytes = [&](int32_t slot) { return trace.slots[slot].bytes; };
  // A slot that is absent over the end of a step is absent when the second one begins.
  for (const int64_t begin : {int64_t{0}, count})
    for (const Eviction& eviction : ordered) {
      if (eviction.back_at == kNextUseUnknown) continue;
      for (auto back = on_host.begin(); back != on_host.end() && back->first <= begin + eviction.at;
           back = on_host.erase(back))
        resident_bytes -= bytes(back->second);
      on_host.emplace(begin + eviction.back_at, eviction.slot);
      resident_bytes += bytes(eviction.slot);
      while (resident_bytes > host_bytes) {
        const auto last = std::prev(on_host.end());
        on_disk.insert({last->second, static_cast<int32_t>(last->first % count)});
        resident_bytes -= bytes(last->second);
        on_host.erase(last);
      }
    }
  return on_disk;
}

int64_t host_peak_bytes(const StepTrace& trace, const std::vector<Eviction>& evictions) {
  const auto count = static_cast<int64_t>(trace.operators.size());
  std::vector<int64_t> change(2 * count + 1);
  std::map<int32_t, int64_t> held_until;  // by slot: where its copy ends
  std::vector<Eviction> ordered = evictions;
  std::stable_sort(ordered.begin(), ordered.end(), [](const Eviction& a, const Eviction& b) { return a.at < b.at; });
  for (const int64_t begin : {int64_t{0}, count})
    for (const Eviction& eviction : ordered) {
      const Slot& slot = trace.slots[eviction.slot];
      const int64_t at = begin + eviction.at;
      if (const auto held = held_until.find(eviction.slot); held != held_until.end() && held->second > at) continue;
      int64_t end = slot.death >= 0 ? begin + slot.death : 2 * count;
      const auto write = std::upper_bound(slot.writes.begin(), slot.writes.end(), eviction.at);
      if (write != slot.writes.end())
        end = std::min(end, begin + *write);
      else if (!slot.writes.empty() && slot.death < 0)
        end = std::min(end, begin + count + slot.writes.front());
      end = std::clamp(end, at, 2 * count);
      held_until[eviction.slot] = end;
      change[at] += slot.bytes;
      change[end] -= slot.bytes;
    }
  int64_t held = 0, most = 0;
  for (const int64_t bytes : change) most = std::max(most, held += bytes);
  return most;
}

}  // namespace spillway::swap
