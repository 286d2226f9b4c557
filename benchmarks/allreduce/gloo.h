/// gloo's allreduce as torch's Python package has it, because gloo's C++ headers are in no wheel.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "benchmarks/allreduce/problem.h"
#include "benchmarks/allreduce/timing.h"

namespace spillway::tools {

/// Starts `python` and throws BadRequest unless it has a torch with gloo.
void require_gloo(const std::string& python);

/// Returns the worker's options: {problems: [{bytes count type op}] offset_bytes timing}. Keeps those of `problems`
/// that gloo can be asked for: allreduces by sum, maximum or minimum. Throws BadRequest when there is none.
nlohmann::json gloo_options(const std::vector<Problem>& problems, const TimingOptions& timing);

/// Returns a rank's command, which stands behind the launcher's: `python` with the worker's text and `options`. Ranks
/// wait `timeout_seconds` for each other. They meet at rank 0 of `ranks`, a trial's list of ranks. Its address is
/// 127.0.0.1 where all ranks are on one host, else that host's name.
std::vector<std::string> gloo_command(const std::string& python, nlohmann::json options, const nlohmann::json& ranks,
                                      double timeout_seconds);

}  // namespace spillway::tools
