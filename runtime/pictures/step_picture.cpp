#include "runtime/pictures/step_picture.h"

#include <algorithm>
#include <numeric>

#include "core/bytes.h"
#include "core/error.h"
#include "runtime/pictures/axis.h"
#include "runtime/pictures/lanes.h"
#include "runtime/pictures/text.h"

namespace spillway::report {
namespace {

constexpr double kMemoryTop = 10, kMemoryBottom = 310, kLanesTop = 322;

/// Returns the seconds that the time axis must hold, > 0.
double duration_of(const StepRecording& recording) {
  double last = recording.seconds;
  for (const MemorySample& sample : recording.memory) last = std::max(last, sample.seconds);
  for (const TraceEvent& event : recording.events) last = std::max(last, event.start_seconds + event.seconds);
  return last > 0 ? last : 1e-6;
}

std::string heading_of(const std::string& which) {
  std::string heading = "One step from inside";
  return which.empty() ? heading : str(heading, " <small>", escape(which), "</small>");
}

std::string caption_of(const StepRecording& recording) {
  const MemorySample* highest = highest_sample(recording);
  if (!highest) return "<p>The memory of this step was not sampled.</p>\n";
  const int64_t most = std::accumulate(highest->bytes.begin(), highest->bytes.end(), int64_t{0});
  return str("<p>Bytes held after each operator; inside one there can be more. The highest of ",
             counted(std::ssize(recording.memory), "sample"), " is ", format_bytes(most), ", ",
             format_seconds(highest->seconds), " into the step; the legend gives the bytes of that instant. ",
             "Faint bars are many short events. Hover for names and times.</p>\n");
}

}  // namespace

std::string draw_step(const StepRecording& recording, const MemoryLevels& levels, const std::string& which) {
  std::string out = str("<section><h2>", heading_of(which), "</h2>\n");
  if (recording.memory.empty() && recording.events.empty()) return out + "<p>No step was recorded.</p></section>\n";
  const double lanes_bottom = kLanesTop + lanes_height(lanes_of(recording.events).size());
  const Axis time{0, duration_of(recording), kTimelineLeft, kTimelineRight};
  const Grid memory{kTimelineLeft, kTimelineRight, kMemoryTop, kMemoryBottom};
  const Grid lanes{kTimelineLeft, kTimelineRight, kLanesTop, lanes_bottom};
  const Grid both{kTimelineLeft, kTimelineRight, kMemoryTop, lanes_bottom + 4};
  out += draw_memory_legend(recording);
  out += str("<div class=\"wide\"><svg class=\"step\" viewBox=\"0 0 ", kTimelineWidth, " ", decimal(lanes_bottom + 26),
             "\" role=\"img\" aria-label=\"Memory by category and lanes of one step\">\n");
  out += draw_columns(both, time, second_ticks(time.high, 8));
  out += draw_memory(recording, levels, memory, time);
  out += draw_lanes(recording.events, lanes, time);
  return out + "</svg></div>\n" + caption_of(recording) + "</section>\n";
}

}  // namespace spillway::report
