/// The report's tables of numbers. Each function returns HTML, which is empty when there is nothing to show.
#pragma once
#include <string>
#include <vector>

#include "runtime/results/train_result.h"

namespace spillway::report {

/// Draws the few numbers that a reader wants first.
std::string draw_headline(const TrainResult& result, const std::vector<NamedResult>& others);

/// Draws a column for the run and for each comparison. Rows in which no run has a number are left out.
std::string draw_summary(const TrainResult& result, const std::vector<NamedResult>& others);

std::string draw_kfac(const KfacSummary& kfac);

std::string draw_allreduce(const AllreduceSummary& allreduce);

}  // namespace spillway::report
