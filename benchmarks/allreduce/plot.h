/// The results of an allreduce benchmark, as a picture.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace spillway::tools {

/// Draws bandwidth (size / time, out of place) by size, both logarithmic: a curve for each algorithm and one for the
/// bound. Returns an SVG file that needs nothing else. `result` must be completed (table.h) and have a row or more.
std::string draw_plot(const nlohmann::json& result);

}  // namespace spillway::tools
