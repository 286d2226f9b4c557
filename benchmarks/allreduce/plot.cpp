#include "benchmarks/allreduce/plot.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include "benchmarks/allreduce/problem.h"
#include "core/bytes.h"
#include "core/error.h"
#include "runtime/pictures/axis.h"
#include "runtime/pictures/text.h"

namespace spillway::tools {
namespace {

using nlohmann::json;
using report::Axis, report::Grid, report::Tick, report::decimal, report::draw_text, report::escape;

constexpr double kWidth = 880, kHeight = 496;
constexpr Grid kGrid{84, 660, 96, 432};
constexpr double kMinColumn = 58;  // width that the label of a size needs
constexpr size_t kMaxRows = 12;

/// The style sheet. Own algorithms have filled points, the installed MPI's hollow ones.
constexpr const char* kStyle = R"css(
text { font: 13px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: #1c2430; }
.title { font-size: 17px; font-weight: bold; } .name { font-weight: bold; }
.tick, .note, .soft { fill: #5b6676; font-size: 12px; } .end { text-anchor: end; } .middle { text-anchor: middle; }
.grid { stroke: #e3e7ec; }
.curve { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
circle { stroke-width: 2; }
.levels { stroke: #1f5fa8; } circle.levels { fill: #1f5fa8; } path.levels { stroke-width: 3.5; }
.ring { stroke: #e08a1e; } circle.ring { fill: #e08a1e; }
.leader { stroke: #2f9e77; } circle.leader { fill: #2f9e77; }
.tree { stroke: #1f5fa8; } circle.tree { fill: #1f5fa8; }
.nccl { stroke: #b3261e; } circle.nccl { fill: #b3261e; } .staged { stroke: #7a5c45; } circle.staged { fill: #7a5c45; }
.mpi { stroke: #b3261e; } .mpi-ring { stroke: #9d62a8; } .mpi-rabenseifner { stroke: #7a5c45; }
circle.mpi, circle.mpi-ring, circle.mpi-rabenseifner { fill: #ffffff; }
.bound { stroke: #5b6676; stroke-dasharray: 6 5; } circle.bound { stroke: none; fill: none; }
)css";

struct Curve {
  std::string name;
  std::vector<std::pair<double, double>> points;  ///< bytes, GB/s; ascending
};

/// Returns the curves in the order of first appearance. The bound is first, so that it lies under the others.
std::vector<Curve> curves_of(const json& rows) {
  std::vector<Curve> curves{{"bound", {}}};
  for (const json& row : rows) {
    const std::string name = row["algorithm"];
    const double bytes = row["bytes"], bound = row["bound_seconds"].is_null() ? 0 : row["bound_seconds"].get<double>();
    auto curve = std::find_if(curves.begin(), curves.end(), [&](const Curve& c) { return c.name == name; });
    if (curve == curves.end()) curve = curves.insert(curves.end(), {name, {}});
    curve->points.emplace_back(bytes, row["algbw"]);
    auto& bounds = curves.front().points;
    if (bound > 0 && (bounds.empty() || bounds.back().first < bytes)) bounds.emplace_back(bytes, bytes / bound / 1e9);
  }
  if (curves.front().points.empty()) curves.erase(curves.begin());
  for (Curve& curve : curves) std::stable_sort(curve.points.begin(), curve.points.end());
  return curves;
}

/// Returns a size as `64 KiB` or `1.5 MiB`.
std::string size_label(double bytes) {
  std::string text = format_bytes(bytes);
  const size_t unit = text.find(' ');
  const size_t last = text.find('.') < unit ? text.find_last_not_of('0', unit - 1) : unit - 1;
  return text.erase(last + (text[last] != '.'), unit - last - (text[last] != '.'));
}

/// Returns the sizes that were measured, as far as their labels have room; the last one always.
std::vector<Tick> size_ticks(const std::vector<double>& sizes, const Axis& axis) {
  std::vector<Tick> ticks;
  for (size_t i = sizes.size(); i-- > 0;)
    if (ticks.empty() || axis.at(ticks.back().value) - axis.at(sizes[i]) >= kMinColumn)
      ticks.push_back({sizes[i], size_label(sizes[i])});
  return ticks;
}

/// Returns 1, 2 and 5 times powers of ten, or for many decades the powers alone. They go from a value that is not above
/// `low` to one that is not below `high`.
std::vector<Tick> bandwidth_ticks(double low, double high) {
  for (const auto& factors : {std::vector{1., 2., 5.}, std::vector{1.}}) {
    std::vector<Tick> ticks;
    for (int decade = static_cast<int>(std::floor(std::log10(low))); ticks.empty() || ticks.back().value < high;
         ++decade)
      for (const double factor : factors) {
        const double value = factor * std::pow(10, decade);
        if (!ticks.empty() && ticks.back().value >= high) break;
        if (value <= low * (1 + 1e-9)) ticks.clear();
        ticks.push_back({value, report::format_value(value)});
      }
    if (ticks.size() <= kMaxRows || factors.size() == 1) return ticks;
  }
  return {};
}

std::string draw_curve(const Curve& curve, const Axis& sizes, const Axis& bandwidths) {
  std::string path, dots;
  for (const auto& [bytes, bandwidth] : curve.points) {
    const std::string x = decimal(sizes.at(bytes)), y = decimal(bandwidths.at(bandwidth));
    path += str(path.empty() ? "M" : "L", x, " ", y);
    dots += str("<circle cx=\"", x, "\" cy=\"", y, "\" r=\"3.5\" class=\"", escape(curve.name), "\"/>\n");
  }
  return str("<path class=\"curve ", escape(curve.name), "\" d=\"", path, "\"/>\n", dots);
}

/// Draws the names beside the curves' ends, in the order of the ends.
std::string draw_legend(const std::vector<Curve>& curves, const Axis& bandwidths) {
  std::vector<double> heights;
  for (const Curve& curve : curves) heights.push_back(bandwidths.at(curve.points.back().second));
  heights = report::spread(heights, 34, kGrid.top + 6, kGrid.bottom - 12);
  std::string out;
  for (size_t i = 0; i < curves.size(); ++i) {
    const double x = kGrid.right + 20, y = heights[i];
    const auto& [bytes, bandwidth] = curves[i].points.back();
    const std::string css = escape(curves[i].name);
    out += str("<path class=\"curve ", css, "\" d=\"M", decimal(x), " ", decimal(y), "h30\"/>\n");
    out += str("<circle cx=\"", decimal(x + 15), "\" cy=\"", decimal(y), "\" r=\"3.5\" class=\"", css, "\"/>\n");
    out += draw_text(x + 40, y + 4, "name", curves[i].name);
    out += draw_text(x + 40, y + 18, "note", str(report::format_value(bandwidth), " GB/s at ", size_label(bytes)));
  }
  return out;
}

/// Names the ranks' time that counts.
std::string whose_time(const json& result) {
  const std::string average = result.contains("timing") ? result["timing"]["average"].get<std::string>() : "max";
  if (average == "mean") return "the mean of the ranks";
  if (average == "rank0") return "rank 0";
  return average == "min" ? "the fastest rank" : "the slowest rank";
}

/// Returns a title such as `Reduce scatter`.
std::string title_of(std::string collective) {
  std::replace(collective.begin(), collective.end(), '_', ' ');
  collective[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(collective[0])));
  return collective;
}

bool reduces(const json& result) {
  return Problem{.collective = parse_collective(result.value("collective", "allreduce"))}.reduces();
}

std::string draw_title(const json& result) {
  const std::string by = result[result["cards"].is_null() ? "mpi" : "cards"], op = result["op"], type = result["type"],
                    levels = result["levels"], collective = title_of(result.value("collective", "allreduce"));
  const int ranks = result["world_size"], repeats = result["repeats"];
  std::string median = str("median of ", report::counted(repeats, "repeat"));
  if (result.contains("launches")) median += str(", and of ", result["launches"].get<int>(), " launches");
  return draw_text(28, 32, "title",
                   str(collective, " of ", type, reduces(result) ? " (" + op + "), " : ", ",
                       report::counted(ranks, "rank"), " (", levels, ")")) +
         draw_text(28, 54, "soft",
                   str("size / time of ", whose_time(result), ", out of place, ", median, "; ",
                       report::shorten(result["cards"].is_null() ? by.substr(0, by.find(',')) : by, 40)));
}

}  // namespace

std::string draw_plot(const json& result) {
  const std::vector<Curve> curves = curves_of(result["rows"]);
  std::vector<double> sizes;
  double low = INFINITY, high = 0;
  for (const Curve& curve : curves)
    for (const auto& [bytes, bandwidth] : curve.points) {
      sizes.push_back(bytes);
      low = std::min(low, bandwidth);
      high = std::max(high, bandwidth);
    }
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  const auto rows = bandwidth_ticks(low, high);
  const double margin = sizes.size() == 1 ? 2 : 1;  // a single size is in the middle
  const Axis columns_axis{sizes.front() / margin, sizes.back() * margin, kGrid.left + 24, kGrid.right - 24, true};
  const Axis rows_axis{rows.front().value, rows.back().value, kGrid.bottom, kGrid.top, true};
  std::string out = str("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", kWidth, " ", kHeight, "\" width=\"",
                        kWidth, "\" height=\"", kHeight, "\">\n<style>", kStyle, "</style>\n",
                        "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n");
  out += draw_title(result);
  out += report::draw_rows(kGrid, rows_axis, rows) + draw_text(kGrid.left - 8, kGrid.top - 14, "tick end", "GB/s");
  out += report::draw_columns(kGrid, columns_axis, size_ticks(sizes, columns_axis), "size");
  for (const Curve& curve : curves)
    if (curve.name != "levels") out += draw_curve(curve, columns_axis, rows_axis);
  for (const Curve& curve : curves)
    if (curve.name == "levels") out += draw_curve(curve, columns_axis, rows_axis);
  return out + draw_legend(curves, rows_axis) + "</svg>\n";
}

}  // namespace spillway::tools
