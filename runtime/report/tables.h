/// The report's numbers. Each function gives HTML, empty when there is nothing to show.
#pragma once
#include <string>
#include <vector>

#include "runtime/report/named_result.h"

namespace spillway::report {

/// The few numbers that a reader wants first.
std::string draw_headline(const TrainResult& result, const std::vector<NamedResult>& others);

/// A column for the run and for each comparison; rows in which nobody has a number are left out.
std::string draw_summary(const TrainResult& result, const std::vector<NamedResult>& others);

/// The operators that took most of the recorded step; copies are not operators.
std::string draw_operators(const StepRecording& recording);

std::string draw_kfac(const KfacSummary& kfac);

std::string draw_allreduce(const AllreduceSummary& allreduce);

}  // namespace spillway::report
