/// One step from inside: memory by category above the lanes of compute and copies.
#pragma once
#include <string>

#include "runtime/pictures/memory.h"
#include "runtime/recording/session_report.h"

namespace spillway::report {

/// Draws memory above lanes, on one time axis, as a section of the page. `which` names the step, not yet escaped.
std::string draw_step(const StepRecording& recording, const MemoryLevels& levels, const std::string& which);

}  // namespace spillway::report
