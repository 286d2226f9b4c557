/// What an allreduce benchmark found, as a picture.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace spillway::tools {

/// Bandwidth (size / time, out of place) by size, both logarithmic: a curve for each algorithm and one for the bound.
/// An SVG file that needs nothing else. Of completed results (allreduce_table.h) with a row or more.
std::string draw_plot(const nlohmann::json& result);

}  // namespace spillway::tools
