#include "runtime/report/lanes.h"

#include <algorithm>
#include <array>

#include "core/bytes.h"
#include "core/error.h"
#include "runtime/report/text.h"

namespace spillway::report {
namespace {

constexpr size_t kMaxLanes = 12;
constexpr double kRowHeight = 34, kBarHeight = 24;
constexpr double kTiny = 1.5;      // picture units: a narrower event cannot be told from its neighbor
constexpr double kWidestRun = 12;  // a run of tiny events is cut here, so that its tooltip says where it is

/// Consecutive events that are drawn as one block.
struct Block {
  double left, right;
  int64_t events = 1;
  const TraceEvent* longest;
};

std::vector<const TraceEvent*> events_of(const std::vector<TraceEvent>& events, std::string_view lane) {
  std::vector<const TraceEvent*> found;
  for (const TraceEvent& event : events)
    if (event.lane == lane) found.push_back(&event);
  std::stable_sort(found.begin(), found.end(),
                   [](const TraceEvent* a, const TraceEvent* b) { return a->start_seconds < b->start_seconds; });
  return found;
}

bool joins(const Block& block, double left, double right) {
  if (left - block.left < kTiny) return true;
  const bool block_is_run = block.events > 1 || block.right - block.left < kTiny;
  return block_is_run && right - left < kTiny && left - block.right < 0.5 && right - block.left < kWidestRun;
}

std::vector<Block> merge(const std::vector<const TraceEvent*>& events, const Axis& time) {
  std::vector<Block> blocks;
  for (const TraceEvent* event : events) {
    const double left = time.at(event->start_seconds), right = time.at(event->start_seconds + event->seconds);
    if (blocks.empty() || !joins(blocks.back(), left, right)) {
      blocks.push_back({left, right, 1, event});
      continue;
    }
    Block& block = blocks.back();
    block.right = std::max(block.right, right);
    ++block.events;
    if (event->seconds > block.longest->seconds) block.longest = event;
  }
  return blocks;
}

std::string_view without_namespace(std::string_view name) {
  const size_t colons = name.rfind("::");
  return colons == std::string_view::npos ? name : name.substr(colons + 2);
}

std::string tooltip(const Block& block, bool is_run) {
  const TraceEvent& event = *block.longest;
  std::string text = str(event.name, ", ", format_seconds(event.seconds));
  if (event.bytes > 0) text += str(", ", format_bytes(event.bytes));
  if (is_run) return str(counted(block.events, "short event"), ", the longest: ", text);
  return block.events == 1 ? text : str(text, ", and ", counted(block.events - 1, "short event"));
}

/// Draws a block. Events alternate between two colors, so that neighbors can be told apart; a run of short ones has a
/// third color.
std::string draw_block(const Block& block, const Axis& time, double top, bool& odd) {
  const double width = std::max(0.6, block.right - block.left);
  const TraceEvent& longest = *block.longest;
  const double longest_width = time.at(longest.start_seconds + longest.seconds) - time.at(longest.start_seconds);
  const bool is_run = block.events > 1 && longest_width < width / 2;
  if (!is_run) odd = !odd;
  const char* css = is_run ? "b r" : odd ? "b o" : "b";
  std::string out =
      str("<rect x=\"", decimal(block.left), "\" y=\"", decimal(top), "\" width=\"", decimal(width), "\" height=\"",
          decimal(kBarHeight), "\" class=\"", css, "\"><title>", escape(tooltip(block, is_run)), "</title></rect>\n");
  const std::string_view name = without_namespace(longest.name);
  if (!is_run && 6.2 * static_cast<double>(name.size()) + 8 < width)
    out += draw_text(block.left + width / 2, top + kBarHeight / 2 + 4, "on-bar middle", name);
  return out;
}

/// Returns the seconds in which at least one event ran.
double busy_seconds(const std::vector<const TraceEvent*>& events) {
  double busy = 0, until = 0;
  for (const TraceEvent* event : events) {
    const double end = event->start_seconds + event->seconds;
    busy += std::max(0., end - std::max(until, event->start_seconds));
    until = std::max(until, end);
  }
  return busy;
}

std::string lane_note(const std::vector<const TraceEvent*>& events) {
  if (events.empty()) return "idle";
  int64_t bytes = 0;
  for (const TraceEvent* event : events) bytes += event->bytes;
  std::string note = str(format_seconds(busy_seconds(events)), " busy");
  return bytes > 0 ? str(note, ", ", format_bytes(bytes)) : note;
}

}  // namespace

std::vector<std::string> lanes_of(const std::vector<TraceEvent>& events) {
  std::vector<std::string> lanes{"compute", "copy out", "copy in", "communication"};
  for (const TraceEvent& event : events)
    if (lanes.size() < kMaxLanes && std::find(lanes.begin(), lanes.end(), event.lane) == lanes.end())
      lanes.push_back(event.lane);
  return lanes;
}

double lanes_height(size_t lanes) {
  return kRowHeight * static_cast<double>(lanes);
}

std::string draw_lanes(const std::vector<TraceEvent>& events, const Grid& grid, const Axis& time) {
  std::string out;
  double top = grid.top + (kRowHeight - kBarHeight) / 2;
  for (const std::string& lane : lanes_of(events)) {
    const auto found = events_of(events, lane);
    const double middle = top + kBarHeight / 2;
    out += draw_line(grid.left, middle, grid.right, middle, "grid");
    out += draw_text(grid.left - 8, middle + 4, "lane end", shorten(lane, 16));
    bool odd = false;
    for (const Block& block : merge(found, time)) out += draw_block(block, time, top, odd);
    out += draw_text(grid.right + 10, middle + 4, "note", lane_note(found));
    top += kRowHeight;
  }
  return out;
}

}  // namespace spillway::report
