#include "runtime/recording/summarize_paging.h"

#include <algorithm>
#include <map>

#include "swap/schedule/schedule.h"
#include "swap/schedule/step_trace.h"

namespace spillway::runtime {
namespace {

/// Returns the last use of `slot` before operator `use`, in the step before if need be; -1 when there is none.
int32_t use_before(const swap::StepTrace& trace, const swap::Slot& slot, int32_t use) {
  const int32_t count = trace.operators.size();
  auto at = std::lower_bound(slot.uses.begin(), slot.uses.end(), use % count);
  if (at != slot.uses.begin()) return *std::prev(at);
  return slot.birth == swap::kBeforeStep && !slot.uses.empty() ? slot.uses.back() : -1;
}

std::string name_of(const swap::StepTrace& trace, int32_t i) {
  return i < 0 ? std::string() : std::string(trace.operators[i].name);
}

/// Returns the time from the end of operator `from` to the beginning of `to`, around the step's end when `to` comes
/// first.
double seconds_between(const swap::StepTrace& trace, int32_t from, int32_t to) {
  const int32_t count = trace.operators.size();
  double seconds = 0;
  for (int32_t i = (from + 1) % count; i != to; i = (i + 1) % count)
    seconds += trace.operators[i].seconds + trace.operators[i].host_seconds;
  return seconds;
}

PlannedAbsence absence_of(const swap::StepTrace& trace, int32_t s, int32_t use, bool replayed) {
  const swap::Slot& slot = trace.slots[s];
  const int32_t to = use % std::ssize(trace.operators);
  const int32_t from = use_before(trace, slot, use);
  PlannedAbsence absence;
  absence.maker = name_of(trace, slot.birth);
  absence.after = name_of(trace, from);
  absence.before = name_of(trace, to);
  absence.category = slot.category;
  absence.bytes = slot.bytes;
  absence.seconds = from < 0 ? 0 : seconds_between(trace, from, to);
  absence.replayed = replayed;
  return absence;
}

}  // namespace

PagingSummary summarize_paging(const swap::StepTrace& trace, const swap::Schedule& schedule) {
  PagingSummary summary;
  summary.kind = trace.kind;
  for (const swap::Actions::PageIn& in : schedule.actions.page_ins)
    summary.absences.push_back(absence_of(trace, in.slot, in.use, /*replayed=*/false));
  for (const swap::Replay& replay : schedule.replays)
    summary.absences.push_back(absence_of(trace, replay.slot, replay.use, /*replayed=*/true));
  std::stable_sort(summary.absences.begin(), summary.absences.end(),
                   [](const auto& a, const auto& b) { return a.bytes > b.bytes; });

  std::map<std::string_view, Footprint> largest;
  for (const swap::OperatorRecord& op : trace.operators) {
    int64_t output_bytes = 0;
    for (const int32_t born : op.births)
      if (trace.slots[born].born_as_output) output_bytes += trace.slots[born].bytes;
    output_bytes = std::min(output_bytes, op.own_bytes);
    Footprint footprint{std::string(op.name), op.leased_bytes, output_bytes, op.own_bytes - output_bytes};
    if (Footprint& known = largest[op.name]; footprint.bytes() > known.bytes()) known = std::move(footprint);
  }
  for (auto& [name, footprint] : largest)
    if (footprint.bytes() > 0) summary.footprints.push_back(std::move(footprint));
  std::stable_sort(summary.footprints.begin(), summary.footprints.end(),
                   [](const auto& a, const auto& b) { return a.bytes() > b.bytes(); });

  summary.compute_seconds = trace.compute_seconds();
  summary.shortest_compute_seconds = trace.shortest_seconds();
  summary.on_demand = schedule.on_demand;
  summary.predicted_seconds = schedule.predicted_seconds;
  summary.exposed_seconds = schedule.exposed_seconds;
  summary.bound_seconds = schedule.bound_seconds;
  summary.bytes_out = schedule.bytes_out;
  summary.bytes_in = schedule.bytes_in;
  return summary;
}

}  // namespace spillway::runtime
