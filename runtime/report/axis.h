/// Where a value lies in a picture, and the round numbers beside it.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace spillway::report {

/// Maps values to picture units; what lies outside goes to the nearer end.
struct Axis {
  double low = 0, high = 1;  ///< values
  double from = 0, to = 1;   ///< picture units; from > to for an axis that grows upward
  bool logarithmic = false;  ///< low > 0 then

  double at(double value) const;
};

struct Tick {
  double value;
  std::string label;
};

/// 0 to `high` (> 0) seconds in about `count` steps of 1, 2 or 5; one unit for all.
std::vector<Tick> second_ticks(double high, int count);

/// 0 to `high` (> 0) bytes in steps of a power of two; one unit for all.
std::vector<Tick> byte_ticks(double high);

/// 0 to `high` (≥ 1) in whole steps.
std::vector<Tick> whole_ticks(int64_t high, int count);

/// Ticks of plain numbers, with the axis that they span.
struct ValueScale {
  Axis axis;
  std::vector<Tick> ticks;
};

/// Holds every finite one of `values` (none: 0 to 1): linear, from zero when that is near; logarithmic when all are
/// positive and span more than a hundredfold.
ValueScale scale_values(const std::vector<double>& values);

/// Moves `wanted` apart, no further than needed, until neighbours are `gap` away from each other and all lie in
/// [low, high] (as far as there is room).
std::vector<double> spread(const std::vector<double>& wanted, double gap, double low, double high);

/// A plot's rectangle in picture units; ticks are labelled outside it.
struct Grid {
  double left, right, top, bottom;
};

/// Horizontal lines at `ticks` with labels on the left.
std::string draw_rows(const Grid& grid, const Axis& axis, const std::vector<Tick>& ticks);

/// Vertical lines at `ticks` with labels below, and below them, on the right, the axis' `name` if there is one.
std::string draw_columns(const Grid& grid, const Axis& axis, const std::vector<Tick>& ticks,
                         std::string_view name = "");

/// `<text>` at a place; `css` is a class (list), `text` is escaped here.
std::string draw_text(double x, double y, std::string_view css, std::string_view text);

/// `<line>`.
std::string draw_line(double x1, double y1, double x2, double y2, std::string_view css);

}  // namespace spillway::report
