/// Axes of a picture: the position of a value, and the round numbers beside it.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace spillway::report {

/// A map from values to picture units; values outside go to the nearer end.
struct Axis {
  double low = 0, high = 1;  ///< values
  double from = 0, to = 1;   ///< picture units; from > to for an axis that grows upward
  bool logarithmic = false;  ///< needs low > 0

  double at(double value) const;
};

struct Tick {
  double value;
  std::string label;
};

/// Returns ticks from 0 to `high` (> 0) seconds in about `count` steps of 1, 2 or 5; all have one unit.
std::vector<Tick> second_ticks(double high, int count);

/// Returns ticks from 0 to `high` (> 0) bytes in steps of a power of two; all have one unit.
std::vector<Tick> byte_ticks(double high);

/// Returns ticks from 0 to `high` (≥ 1) in whole steps.
std::vector<Tick> whole_ticks(int64_t high, int count);

/// Ticks of plain numbers, with the axis that they span.
struct ValueScale {
  Axis axis;
  std::vector<Tick> ticks;
};

/// Makes a scale that holds every finite one of `values` (none: 0 to 1). It is linear, and starts at zero when zero is
/// near. It is logarithmic when all values are positive and span more than a hundredfold.
ValueScale scale_values(const std::vector<double>& values);

/// Moves `wanted` apart, no further than needed. Neighbors are then `gap` away from each other, and all lie in [low,
/// high] (as far as there is room).
std::vector<double> spread(const std::vector<double>& wanted, double gap, double low, double high);

/// A plot's rectangle in picture units; ticks are labeled outside it.
struct Grid {
  double left, right, top, bottom;
};

/// Pictures with the time of a step from left to right: their width, and where the time begins and ends.
inline constexpr double kTimelineWidth = 1120, kTimelineLeft = 132, kTimelineRight = 920;

/// Draws horizontal lines at `ticks` with labels on the left.
std::string draw_rows(const Grid& grid, const Axis& axis, const std::vector<Tick>& ticks);

/// Draws vertical lines at `ticks` with labels below. The axis' `name`, if there is one, stands below the labels on the
/// right.
std::string draw_columns(const Grid& grid, const Axis& axis, const std::vector<Tick>& ticks,
                         std::string_view name = "");

/// Draws `<text>` at a place; `css` is a class (list), `text` is escaped here.
std::string draw_text(double x, double y, std::string_view css, std::string_view text);

/// Draws a `<line>`.
std::string draw_line(double x1, double y1, double x2, double y2, std::string_view css);

}  // namespace spillway::report
