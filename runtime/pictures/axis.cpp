#include "runtime/pictures/axis.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "core/error.h"
#include "runtime/pictures/text.h"

namespace spillway::report {
namespace {

/// Returns the smallest of 1, 2, 5 times a power of ten that makes no more than `count` steps of `range` (> 0).
double round_step(double range, int count) {
  const double least = range / count;
  const double decade = std::pow(10, std::floor(std::log10(least)));
  for (double factor : {1., 2., 5.})
    if (factor * decade >= least * (1 - 1e-9)) return factor * decade;
  return 10 * decade;
}

std::string short_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value == 0 ? 0 : value);  // no "-0"
  return text;
}

std::vector<Tick> ticks_from_zero(double high, double step, double unit, std::string_view unit_name) {
  std::vector<Tick> ticks;
  for (int k = 0; k * step <= high * (1 + 1e-9); ++k)
    ticks.push_back({k * step, k == 0 ? "0" : str(short_number(k * step / unit), unit_name)});
  return ticks;
}

ValueScale scale_logarithmic(double low, double high) {
  const int first = static_cast<int>(std::floor(std::log10(low)));
  const int last = static_cast<int>(std::ceil(std::log10(high)));
  const int stride = (last - first) / 6 + 1;
  ValueScale scale{{std::pow(10, first), std::pow(10, last), 0, 1, true}, {}};
  for (int k = first; k <= last; k += stride) scale.ticks.push_back({std::pow(10, k), short_number(std::pow(10, k))});
  return scale;
}

}  // namespace

double Axis::at(double value) const {
  const double part =
      logarithmic ? (std::log(value) - std::log(low)) / (std::log(high) - std::log(low)) : (value - low) / (high - low);
  return from + (to - from) * (std::isfinite(part) ? std::clamp(part, 0., 1.) : 0.);
}

std::vector<Tick> second_ticks(double high, int count) {
  const double step = round_step(high, count);
  if (high >= 1) return ticks_from_zero(high, step, 1, " s");
  if (high >= 1e-3) return ticks_from_zero(high, step, 1e-3, " ms");
  return ticks_from_zero(high, step, 1e-6, " µs");
}

std::vector<Tick> byte_ticks(double high) {
  static constexpr std::array kUnits{" B", " KiB", " MiB", " GiB", " TiB"};
  const double step = std::max(1., std::exp2(std::floor(std::log2(high / 3))));
  size_t unit = 0;
  while (unit + 1 < kUnits.size() && high / std::pow(1024, unit + 1) >= 1) ++unit;
  return ticks_from_zero(high, step, std::pow(1024, unit), kUnits[unit]);
}

std::vector<Tick> whole_ticks(int64_t high, int count) {
  return ticks_from_zero(static_cast<double>(high), std::max(1., round_step(static_cast<double>(high), count)), 1, "");
}

ValueScale scale_values(const std::vector<double>& values) {
  double low = INFINITY, high = -INFINITY;
  for (double value : values) {
    if (!std::isfinite(value)) continue;
    low = std::min(low, std::clamp(value, -1e300, 1e300));
    high = std::max(high, std::clamp(value, -1e300, 1e300));
  }
  if (low > high) low = 0, high = 1;
  if (low > 0 && high > 100 * low) return scale_logarithmic(low, high);
  if (low > 0 && low < 0.4 * high) low = 0;
  const double least = std::max(1e-4 * std::max(std::fabs(low), std::fabs(high)), 1e-12);
  if (high - low < least) low -= least / 2, high += least / 2;  // six digits must tell ticks apart
  const double step = round_step(high - low, 5);
  const double first = std::floor(low / step + 1e-9), last = std::ceil(high / step - 1e-9);
  ValueScale scale{{first * step, last * step, 0, 1, false}, {}};
  for (double k = first; k <= last; ++k) scale.ticks.push_back({k * step, short_number(k * step)});
  return scale;
}

std::vector<double> spread(const std::vector<double>& wanted, double gap, double low, double high) {
  std::vector<size_t> order(wanted.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return wanted[a] < wanted[b]; });
  std::vector<double> placed = wanted;
  double next = low;
  for (size_t i : order) {
    placed[i] = std::max(placed[i], next);
    next = placed[i] + gap;
  }
  double last = high;
  for (size_t k = order.size(); k-- > 0;) {
    placed[order[k]] = std::min(placed[order[k]], last);
    last = placed[order[k]] - gap;
  }
  return placed;
}

std::string draw_text(double x, double y, std::string_view css, std::string_view text) {
  return str("<text x=\"", decimal(x), "\" y=\"", decimal(y), "\" class=\"", css, "\">", escape(text), "</text>\n");
}

std::string draw_line(double x1, double y1, double x2, double y2, std::string_view css) {
  return str("<line x1=\"", decimal(x1), "\" y1=\"", decimal(y1), "\" x2=\"", decimal(x2), "\" y2=\"", decimal(y2),
             "\" class=\"", css, "\"/>\n");
}

std::string draw_rows(const Grid& grid, const Axis& axis, const std::vector<Tick>& ticks) {
  std::string out;
  for (const Tick& tick : ticks) {
    const double y = axis.at(tick.value);
    out += draw_line(grid.left, y, grid.right, y, "grid");
    out += draw_text(grid.left - 8, y + 4, "tick end", tick.label);
  }
  return out;
}

std::string draw_columns(const Grid& grid, const Axis& axis, const std::vector<Tick>& ticks, std::string_view name) {
  std::string out;
  for (const Tick& tick : ticks) {
    const double x = axis.at(tick.value);
    out += draw_line(x, grid.top, x, grid.bottom, "grid");
    out += draw_text(x, grid.bottom + 17, "tick middle", tick.label);
  }
  if (!name.empty()) out += draw_text(grid.right, grid.bottom + 34, "tick end", name);
  return out;
}

}  // namespace spillway::report
