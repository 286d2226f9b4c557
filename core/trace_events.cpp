#include "core/trace_events.h"

#include <map>
#include <nlohmann/json.hpp>

#include "core/json_text.h"

namespace spillway {

void TraceEvents::add(std::string name, std::string lane, SteadyTime start, SteadyTime end, int64_t bytes) {
  std::lock_guard lock(mutex_);
  if (events_.size() >= limit_) {
    ++dropped_;
    return;
  }
  events_.push_back({std::move(name), std::move(lane), std::chrono::duration<double>(start - start_).count(),
                     std::chrono::duration<double>(end - start).count(), bytes});
}

std::vector<TraceEvent> TraceEvents::events() const {
  std::lock_guard lock(mutex_);
  return events_;
}

size_t TraceEvents::dropped() const {
  std::lock_guard lock(mutex_);
  return dropped_;
}

void TraceEvents::write_chrome_json(std::ostream& out) const {
  spillway::write_chrome_json(out, events());
}

void write_chrome_json(std::ostream& out, const std::vector<TraceEvent>& events) {
  using nlohmann::json;
  std::map<std::string, int> lanes;
  bool first = true;
  auto write = [&](const json& event) { out << (std::exchange(first, false) ? "" : ",\n") << json_text(event); };
  out << "{\"traceEvents\":[\n";
  for (const TraceEvent& event : events) {
    auto [lane, is_new] = lanes.try_emplace(event.lane, lanes.size());
    if (is_new)
      write(
          {{"name", "thread_name"}, {"ph", "M"}, {"pid", 0}, {"tid", lane->second}, {"args", {{"name", event.lane}}}});
    write({{"name", event.name},
           {"ph", "X"},
           {"pid", 0},
           {"tid", lane->second},
           {"ts", event.start_seconds * 1e6},
           {"dur", event.seconds * 1e6},
           {"args", {{"bytes", event.bytes}}}});
  }
  out << "\n]}\n";
}

}  // namespace spillway
