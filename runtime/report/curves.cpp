#include "runtime/report/curves.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "runtime/pictures/axis.h"
#include "runtime/pictures/text.h"

namespace spillway::report {
namespace {

constexpr double kCurveWidth = 610, kCurveHeight = 300;
constexpr Grid kGrid{94, 434, 14, 252};
constexpr size_t kColours = 6;  // s0 … s5 in the style sheet; s0 is the run itself
constexpr size_t kMaxLabels = 14;
constexpr size_t kMaxValues = 8;  // labels that have room for a second line, which tells the last value

/// A value after a step, `at` along the horizontal axis: the step's number, or seconds.
struct Point {
  int64_t step;
  double at;
  double value;
};

struct Curve {
  std::string name;
  std::vector<Point> points;
  bool same = false;  ///< equal to the first curve, bit for bit
};

std::string color(size_t i) {
  return str("s", i == 0 ? 0 : 1 + (i - 1) % (kColours - 1));
}

/// Returns the first, lowest, highest and last point of each picture column; all points when they are few.
std::vector<Point> thin_out(const std::vector<Point>& points, const Axis& across) {
  std::vector<Point> kept;
  auto column = [&](const Point& point) { return std::floor(across.at(point.at)); };
  for (size_t begin = 0; begin < points.size();) {
    size_t low = begin, high = begin, end = begin;
    for (; end < points.size() && column(points[end]) == column(points[begin]); ++end) {
      if (!(points[end].value >= points[low].value)) low = end;  // NaN too, so that the gap stays
      if (points[end].value > points[high].value) high = end;
    }
    std::vector<size_t> chosen{begin, low, high, end - 1};
    std::sort(chosen.begin(), chosen.end());
    chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
    for (size_t i : chosen) kept.push_back(points[i]);
    begin = end;
  }
  return kept;
}

/// Draws a path that is broken where the value is not finite; lone points become dots.
std::string draw_curve(const Curve& curve, const std::string& css, const Axis& across, const Axis& values) {
  std::string path, dots;
  size_t run = 0;
  double x = 0, y = 0;
  auto end_run = [&] {
    if (run == 1)
      dots += str("<circle cx=\"", decimal(x), "\" cy=\"", decimal(y), "\" r=\"3.5\" class=\"", css, "\"/>\n");
    run = 0;
  };
  for (const Point& point : thin_out(curve.points, across)) {
    if (!std::isfinite(point.value)) {
      end_run();
      continue;
    }
    x = across.at(point.at), y = values.at(point.value);
    path += str(run++ == 0 ? "M" : "L", decimal(x), " ", decimal(y));
  }
  end_run();
  if (path.empty()) return "";
  return str("<path class=\"curve ", css, curve.same ? " same" : "", "\" d=\"", path, "\"><title>", escape(curve.name),
             "</title></path>\n", dots);
}

double last_finite(const Curve& curve) {
  for (size_t i = curve.points.size(); i-- > 0;)
    if (std::isfinite(curve.points[i].value)) return curve.points[i].value;
  return NAN;
}

std::string draw_labels(const std::vector<Curve>& curves, const Axis& values) {
  std::vector<double> heights;
  for (size_t i = 0; i < curves.size() && i < kMaxLabels; ++i) heights.push_back(values.at(last_finite(curves[i])) + 4);
  const bool has_values = heights.size() <= kMaxValues;
  heights = spread(heights, has_values ? 30 : 15, kGrid.top + 4, kGrid.bottom - (has_values ? 10 : 0));
  std::string out;
  for (size_t i = 0; i < heights.size(); ++i) {
    const Curve& curve = curves[i];
    const double last = curve.points.empty() ? NAN : curve.points.back().value;
    out += draw_text(kGrid.right + 12, heights[i], str("name ", color(i)), shorten(curve.name, 16));
    if (!has_values) continue;
    out += draw_text(kGrid.right + 12, heights[i] + 13, "note",
                     str(curve.points.empty() ? "none" : format_value(last), curve.same ? ", the same bits" : ""));
  }
  return out;
}

/// Returns a note on the steps whose values are missing from the picture.
std::string missing_note(const std::vector<Curve>& curves) {
  std::string out;
  for (const Curve& curve : curves) {
    auto is_bad = [](const Point& point) { return !std::isfinite(point.value); };
    const auto first = std::find_if(curve.points.begin(), curve.points.end(), is_bad);
    if (first == curve.points.end()) continue;
    const auto count = std::count_if(first, curve.points.end(), is_bad);
    out += str("<p class=\"warn\">", escape(curve.name), ": not finite at ", counted(count, "step"), ", first at step ",
               first->step, ".</p>\n");
  }
  return out;
}

bool same_points(const std::vector<Point>& a, const std::vector<Point>& b) {
  return !a.empty() && std::equal(a.begin(), a.end(), b.begin(), b.end(),
                                  [](const auto& p, const auto& q) { return p.step == q.step && p.value == q.value; });
}

/// Draws the comparisons under the run. A comparison that agrees with the run is a broad pale line, so that both are
/// seen.
std::string draw_curves(const std::string& title, std::vector<Curve> curves, Over over) {
  for (size_t i = 1; i < curves.size(); ++i) curves[i].same = same_points(curves[i].points, curves[0].points);
  std::vector<double> all;
  double last = 0;
  for (const Curve& curve : curves)
    for (const Point& point : curve.points) {
      all.push_back(point.value);
      last = std::max(last, point.at);
    }
  if (all.empty()) return "";
  if (last == 0) last = 1;  // the metric before the first step alone
  ValueScale scale = scale_values(all);
  scale.axis.from = kGrid.bottom, scale.axis.to = kGrid.top;
  const Axis across{0, last, kGrid.left, kGrid.right};
  const bool by_step = over == Over::steps;
  std::string out =
      str("<figure>\n<h2>", escape(title), by_step ? "" : " over time",
          scale.axis.logarithmic ? " <small>log scale</small>" : "", "</h2>\n<svg viewBox=\"0 0 ", kCurveWidth, " ",
          kCurveHeight, "\" role=\"img\" aria-label=\"", escape(title), by_step ? " by step" : " over time", "\">\n");
  out += draw_rows(kGrid, scale.axis, scale.ticks);
  out += by_step ? draw_columns(kGrid, across, whole_ticks(static_cast<int64_t>(last), 6), "step")
                 : draw_columns(kGrid, across, second_ticks(last, 6), "time of the steps");
  for (size_t i = curves.size(); i-- > 1;) out += draw_curve(curves[i], color(i), across, scale.axis);
  out += draw_curve(curves[0], color(0), across, scale.axis);
  return out + draw_labels(curves, scale.axis) + "</svg>\n" + missing_note(curves) + "</figure>\n";
}

std::vector<MetricPoint> loss_points(const TrainResult& r) {
  std::vector<MetricPoint> points;
  const int64_t first = r.resumed_from_step.value_or(0) + 1;
  for (size_t i = 0; i < r.losses.size(); ++i) points.push_back({first + static_cast<int64_t>(i), r.losses[i]});
  return points;
}

/// Places values along the axis. The time of a resumed run begins where it went on.
std::vector<Point> place(const TrainResult& r, const std::vector<MetricPoint>& values, Over over) {
  std::vector<double> seconds{0};
  for (const double step : r.step_seconds) seconds.push_back(seconds.back() + step);
  const int64_t first = r.resumed_from_step.value_or(0);
  std::vector<Point> points;
  for (const auto& [step, value] : values) {
    const auto taken = static_cast<size_t>(std::clamp<int64_t>(step - first, 0, std::ssize(seconds) - 1));
    points.push_back({step, over == Over::steps ? static_cast<double>(step) : seconds[taken], value});
  }
  return points;
}

}  // namespace

std::string draw_losses(const TrainResult& result, const std::vector<NamedResult>& others, Over over) {
  std::vector<Curve> curves{{"this run", place(result, loss_points(result), over)}};
  for (const NamedResult& other : others)
    curves.push_back({other.name, place(other.result, loss_points(other.result), over)});
  return draw_curves("Loss", std::move(curves), over);
}

std::string draw_metric(const TrainResult& result, const std::vector<NamedResult>& others, Over over) {
  std::vector<Curve> curves{{"this run", place(result, result.metric, over)}};
  for (const NamedResult& other : others)
    curves.push_back({other.name, place(other.result, other.result.metric, over)});
  return draw_curves(result.metric_name.empty() ? "Metric" : result.metric_name, std::move(curves), over);
}

}  // namespace spillway::report
