#include "runtime/pictures/lanes.h"

#include <algorithm>
#include <array>

#include "core/bytes.h"
#include "core/error.h"
#include "runtime/pictures/text.h"

namespace spillway::report {
namespace {

constexpr size_t kMaxLanes = 12;
constexpr double kRowHeight = 34, kBarHeight = 24;
constexpr double kTiny = 1.5;      // picture units: a narrower event cannot be told from its neighbor
constexpr double kWidestRun = 12;  // a run of tiny events is cut here, so that its tooltip says where it is

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
  const bool block_is_run = block.count > 1 || block.right - block.left < kTiny;
  return block_is_run && right - left < kTiny && left - block.right < 0.5 && right - block.left < kWidestRun;
}

std::vector<Stretch> stretches_of(const std::vector<const TraceEvent*>& events) {
  std::vector<Stretch> all;
  for (const TraceEvent* event : events) all.push_back({event->start_seconds, event->start_seconds + event->seconds});
  return all;
}

std::string_view without_namespace(std::string_view name) {
  const size_t colons = name.rfind("::");
  return colons == std::string_view::npos ? name : name.substr(colons + 2);
}

std::string tooltip(const TraceEvent& longest, size_t count, bool is_run) {
  std::string text = str(longest.name, ", ", format_seconds(longest.seconds));
  if (longest.bytes > 0) text += str(", ", format_bytes(longest.bytes));
  const auto events = static_cast<int64_t>(count);
  if (is_run) return str(counted(events, "short event"), ", the longest: ", text);
  return events == 1 ? text : str(text, ", and ", counted(events - 1, "short event"));
}

/// Draws a block. Events alternate between two colors, so that neighbors can be told apart; a run of short ones has a
/// third color. The name stands where the next block, which begins at `next`, does not cover it.
std::string draw_block(const Block& block, const TraceEvent& longest, bool is_run, double top, double next, bool& odd) {
  const double width = std::max(0.6, block.right - block.left);
  if (!is_run) odd = !odd;
  const char* css = is_run ? "b r" : odd ? "b o" : "b";
  std::string out = str("<rect x=\"", decimal(block.left), "\" y=\"", decimal(top), "\" width=\"", decimal(width),
                        "\" height=\"", decimal(kBarHeight), "\" class=\"", css, "\"><title>",
                        escape(tooltip(longest, block.count, is_run)), "</title></rect>\n");
  const std::string_view name = without_namespace(longest.name);
  const double seen = std::min(width, next - block.left);
  if (!is_run && 6.2 * static_cast<double>(name.size()) + 8 < seen)
    out += draw_text(block.left + seen / 2, top + kBarHeight / 2 + 4, "on-bar middle", name);
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

std::vector<Block> merge_blocks(const std::vector<Stretch>& stretches, const Axis& time) {
  std::vector<Block> blocks;
  for (size_t i = 0; i < stretches.size(); ++i) {
    const double left = time.at(stretches[i].begin), right = time.at(stretches[i].end);
    if (blocks.empty() || !joins(blocks.back(), left, right)) {
      blocks.push_back({left, right, i, i});
      continue;
    }
    Block& block = blocks.back();
    block.right = std::max(block.right, right);
    ++block.count;
    const Stretch& longest = stretches[block.longest];
    if (stretches[i].end - stretches[i].begin > longest.end - longest.begin) block.longest = i;
  }
  return blocks;
}

bool is_run(const Block& block, const std::vector<Stretch>& stretches, const Axis& time) {
  const Stretch& longest = stretches[block.longest];
  return block.count > 1 && time.at(longest.end) - time.at(longest.begin) < std::max(0.6, block.right - block.left) / 2;
}

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
    const auto stretches = stretches_of(found);
    const auto blocks = merge_blocks(stretches, time);
    for (size_t i = 0; i < blocks.size(); ++i) {
      const double next = i + 1 < blocks.size() ? blocks[i + 1].left : blocks[i].right + 1;
      out += draw_block(blocks[i], *found[blocks[i].longest], is_run(blocks[i], stretches, time), top, next, odd);
    }
    out += draw_text(grid.right + 10, middle + 4, "note", lane_note(found));
    top += kRowHeight;
  }
  return out;
}

}  // namespace spillway::report
