/// The report's table of the operators of a step.
#pragma once
#include <string>

#include "runtime/recording/session_report.h"

namespace spillway::report {

/// Draws a bar in a table's cell, of `fraction` of its width.
std::string bar(double fraction);

/// Draws the operators that took most of the recorded step, in HTML; empty when there are none. Copies, and messages
/// beside backward, are not operators.
std::string draw_operators(const StepRecording& recording);

}  // namespace spillway::report
