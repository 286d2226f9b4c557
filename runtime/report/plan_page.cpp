#include "runtime/report/plan_page.h"

#include <algorithm>
#include <cmath>
#include <system_error>
#include <vector>

#include "core/bytes.h"
#include "core/error.h"
#include "core/new_file.h"
#include "core/program.h"
#include "runtime/pictures/axis.h"
#include "runtime/pictures/style.h"
#include "runtime/pictures/text.h"

namespace spillway::report {
namespace {

using namespace runtime;

constexpr double kPlanWidth = 1120, kPlanHeight = 420;
constexpr Grid kGrid{104, 900, 14, 364};
constexpr size_t kColours = 6;  // s0 … s5 in the style sheet

struct Point {
  double bytes, seconds;
};

struct Curve {
  std::string name;
  std::vector<Point> points;  ///< by budget, ascending
};

/// Returns the curve of a size. It ends with the step that needs no budget.
Curve curve_of(const FrontierRow& row) {
  Curve curve{str(row.size), {}};
  const auto add = [&](double bytes, const WeighedChoice& best) {
    if (best.forecast.feasible) curve.points.push_back({bytes, best.forecast.seconds});
  };
  const WeighedChoice& unlimited = row.unlimited.best();
  for (const FrontierPoint& point : row.points)
    if (point.plan.budget_bytes < unlimited.unlimited_bytes)
      add(static_cast<double>(point.plan.budget_bytes), point.plan.best());
  add(static_cast<double>(unlimited.unlimited_bytes), unlimited);
  std::sort(curve.points.begin(), curve.points.end(), [](const Point& a, const Point& b) { return a.bytes < b.bytes; });
  return curve;
}

std::string draw_curve(const Curve& curve, const std::string& css, const Axis& across, const Axis& values) {
  std::string path, dots;
  for (const Point& point : curve.points) {
    const std::string x = decimal(across.at(point.bytes)), y = decimal(values.at(point.seconds));
    path += str(path.empty() ? "M" : "L", x, " ", y);
    dots += str("<circle cx=\"", x, "\" cy=\"", y, "\" r=\"4\" class=\"", css, "\"><title>", escape(curve.name), ": ",
                format_seconds(point.seconds), " with ", format_bytes(static_cast<int64_t>(point.bytes)),
                "</title></circle>\n");
  }
  return str("<path class=\"curve ", css, "\" d=\"", path, "\"/>\n", dots);
}

std::string draw_names(const std::vector<Curve>& curves, const Axis& values) {
  std::vector<double> heights;
  for (const Curve& curve : curves) heights.push_back(values.at(curve.points.back().seconds) + 4);
  heights = spread(heights, 16, kGrid.top + 4, kGrid.bottom);
  std::string out;
  for (size_t i = 0; i < curves.size(); ++i)
    out += draw_text(kGrid.right + 14, heights[i], str("name s", i % kColours), str("size ", curves[i].name));
  return out;
}

std::string cell(const std::string& text) {
  return str("<td>", text.empty() ? "–" : escape(text), "</td>");
}

/// Draws a row of headings over numbers. `text`, if there is one, stands over a last column of text.
std::string head(const std::vector<std::string>& names, std::string_view text = "") {
  std::string out = "<tr>";
  for (const std::string& name : names) out += str("<th>", escape(name), "</th>");
  if (!text.empty()) out += str("<th class=\"text\">", escape(text), "</th>");
  return out + "</tr>\n";
}

/// Draws a row for each kind of step of the best choice.
std::string draw_kinds(const Forecast& forecast) {
  std::string out = "<section><h2>Kinds of step</h2>\n<div class=\"wide\"><table>\n";
  out += head({"kind", "share", "step", "operators", "waits for copies", "messages", "bound", "peak", "host"});
  for (const StepForecast& kind : forecast.kinds)
    out += str("<tr><th>", escape(kind.kind), "</th>", cell(kind.share > 0 ? format_percent(kind.share) : ""),
               cell(format_seconds(kind.seconds)), cell(format_seconds(kind.compute_seconds)),
               cell(format_seconds(kind.copy_seconds)), cell(format_seconds(kind.message_seconds)),
               cell(format_seconds(kind.bound_seconds)), cell(format_bytes(kind.peak_bytes)),
               cell(format_bytes(kind.host_bytes)), "</tr>\n");
  return out + "</table></div></section>\n";
}

/// Draws a row for each choice that was weighed, the best one first.
std::string draw_choices(const RunPlan& plan) {
  if (plan.weighed.size() < 2) return "";
  std::string out = "<section><h2>Choices weighed</h2>\n<div class=\"wide\"><table>\n" +
                    head({"choice", "step", "peak", "host", "smallest budget"});
  for (const WeighedChoice& weighed : plan.weighed) {
    const Forecast& forecast = weighed.forecast;
    out += str("<tr><th>", escape(describe(weighed.choice)), "</th>",
               cell(forecast.feasible ? format_seconds(forecast.seconds) : "does not fit"),
               cell(forecast.feasible ? format_bytes(forecast.peak_bytes) : ""),
               cell(forecast.feasible ? format_bytes(forecast.host_bytes) : ""),
               cell(format_bytes(weighed.floor_bytes)), "</tr>\n");
  }
  return out + "</table></div></section>\n";
}

std::string draw_frontier_row(const FrontierRow& row, const FrontierPoint& point, bool has_choices) {
  const WeighedChoice& best = point.plan.best();
  const double ratio = best.forecast.seconds / row.unlimited.best().forecast.seconds;
  std::string out = str("<tr><th>", row.size, "</th>", cell(format_bytes(point.plan.budget_bytes)));
  if (!best.forecast.feasible)
    return out + str("<td colspan=\"", has_choices ? 6 : 5, "\">the smallest feasible budget is ",
                     format_bytes(best.floor_bytes), "</td></tr>\n");
  out += cell(format_seconds(best.forecast.seconds)) + cell(format_ratio(ratio)) +
         cell(format_bytes(best.forecast.peak_bytes)) + cell(format_bytes(best.forecast.host_bytes)) +
         cell(point.largest_batch > 0 ? str(point.largest_batch) : "");
  if (has_choices) out += str("<td class=\"text\">", escape(describe(best.choice)), "</td>");
  return out + "</tr>\n";
}

std::string draw_frontier_table(const PlanReport& report) {
  const bool has_choices = report.plan.weighed.size() > 1;
  std::vector<std::string> names{"size", "budget", "step", "to unlimited", "peak", "host", "largest batch"};
  std::string out = "<section class=\"wide\"><table>\n" + head(names, has_choices ? "choice" : "");
  for (const FrontierRow& row : report.frontier)
    for (const FrontierPoint& point : row.points) out += draw_frontier_row(row, point, has_choices);
  return out + "</table></section>\n";
}

std::string draw_tiles(const PlanReport& report) {
  const WeighedChoice& best = report.plan.best();
  const WeighedChoice& unlimited = report.unlimited.best();
  std::string out = "<div class=\"tiles\">\n";
  if (best.forecast.feasible)
    out += tile("a step", format_seconds(best.forecast.seconds),
                str(format_ratio(best.forecast.seconds / unlimited.forecast.seconds), " a step without a budget"));
  out += tile("peak without a budget", format_bytes(unlimited.unlimited_bytes), "of each rank");
  out += tile("smallest feasible budget", format_bytes(best.floor_bytes), best.floor_operator);
  if (best.forecast.feasible)
    out += tile("host memory", format_bytes(best.forecast.host_bytes), "for what left the device");
  return out + "</div>\n";
}

}  // namespace

std::string draw_frontier(const PlanReport& report) {
  std::vector<Curve> curves;
  std::vector<double> seconds;
  double most = 0;
  for (const FrontierRow& row : report.frontier) {
    Curve curve = curve_of(row);
    for (const Point& point : curve.points) {
      seconds.push_back(point.seconds);
      most = std::max(most, point.bytes);
    }
    if (!curve.points.empty()) curves.push_back(std::move(curve));
  }
  if (curves.empty() || most <= 0) return "";
  ValueScale scale = scale_values(seconds);
  scale.axis.from = kGrid.bottom, scale.axis.to = kGrid.top;
  const Axis across{0, most, kGrid.left, kGrid.right};
  std::string out =
      str("<figure>\n<h2>Seconds of a step by budget", scale.axis.logarithmic ? " <small>log scale</small>" : "",
          "</h2>\n<div class=\"wide\"><svg class=\"step\" viewBox=\"0 0 ", kPlanWidth, " ", kPlanHeight,
          "\" role=\"img\" aria-label=\"Seconds of a step by budget\">\n");
  out += draw_rows(kGrid, scale.axis, scale.ticks) + draw_columns(kGrid, across, byte_ticks(most), "budget");
  for (size_t i = curves.size(); i-- > 0;) out += draw_curve(curves[i], str("s", i % kColours), across, scale.axis);
  return out + draw_names(curves, scale.axis) +
         "</svg></div>\n<p>The last point of a curve needs no paging. Hover for numbers.</p></figure>\n";
}

std::string draw_plan_page(const PlanReport& report) {
  const std::string budget =
      report.plan.budget_bytes == kUnlimitedBytes ? "no budget" : "budget " + format_bytes(report.plan.budget_bytes);
  const std::string title =
      str("Plan: ", report.model, ", size ", report.size, ", ", counted(report.world, "rank"), ", ", budget);
  std::string out =
      str("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\n<title>", escape(title),
          "</title>\n<style>", kStyle, "</style></head>\n<body><main>\n<header><h1>", escape(title), "</h1>\n<p>",
          escape(str("batch ", report.batch, " per rank, levels ", report.levels, "; device profile ", report.profile,
                     ", ", report.origin)),
          ". Nothing was run.</p></header>\n");
  out += draw_tiles(report);
  out += str("<pre>", escape(explain(report)), "</pre>\n");
  if (report.plan.is_feasible()) out += draw_kinds(report.plan.best().forecast);
  out += draw_choices(report.plan) + draw_frontier(report);
  if (!report.frontier.empty()) out += draw_frontier_table(report);
  return out + str("<footer>Spillway ", kVersion, "</footer>\n</main></body></html>\n");
}

}  // namespace spillway::report

namespace spillway {

void write_plan_page(const std::filesystem::path& dir, const runtime::PlanReport& report) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) throw std::system_error(error, str("[report] cannot make folder ", dir.string()));
  NewFile page(dir / "plan.html", Readers::everyone);
  page.write(report::draw_plan_page(report));
  page.commit();
}

}  // namespace spillway
