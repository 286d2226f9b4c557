/// The results of `spillway bench pipeline`, for people and as JSON.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "benchmarks/pipeline/measure.h"

namespace spillway::tools {

/// A schedule's step with one refresh, or without.
struct ReportRow {
  std::string schedule;
  std::string refresh;   ///< rolling, together or none
  std::string interval;  ///< the words that asked for it: auto or a number; empty: no refresh
  MeasuredRefresh of = {};
  Figures first = {};  ///< figures of the first schedule with the same refresh
};

/// Prints the heading of the table of rows.
void print_heading();
void print(const ReportRow& row);
void print_empty_items(const std::vector<std::pair<std::string, EmptyItem>>& of_schedules);
void print_beside(const std::vector<BesideItems>& messages);

nlohmann::json to_json(const ReportRow& row);
nlohmann::json to_json(const BesideItems& messages);

}  // namespace spillway::tools
