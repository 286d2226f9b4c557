/// The check before a launch that it can work: hosts answer, the program is the same everywhere, links carry messages.
#pragma once
#include <chrono>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tools/ddlrun/compare.h"
#include "tools/ddlrun/launcher.h"

namespace spillway::ddlrun {

/// The latency and the rate that were measured on one level's links.
struct Link {
  double latency_seconds = 0;
  double bytes_per_second = 0;
};

struct Findings {
  std::vector<std::string> notes = {};
  std::vector<Inspected> hosts = {};  ///< empty when the inspection failed or was not reached
  std::string levels = {};
  std::vector<Link> links = {};  ///< by level, from level 1
  Verdict verdict = {};
  std::string launcher_words = {};  ///< text that a failed inspection printed
};

struct PreflightOptions {
  Launcher launcher;
  LaunchOptions launch;
  std::string batch_system;  ///< if not empty, its own launch reaches the hosts, and ssh is not tried
  std::string levels;
  std::string program;               ///< the program to be launched
  std::chrono::seconds timeout{60};  ///< limit for each of the two parts
};

/// Checks first whether the hosts answer. When they do, inspects them and measures their links. Problems are in the
/// verdict. Throws BadRequest when there is no agent or no launcher.
Findings preflight(const Plan& plan, const PreflightOptions& options);

/// Returns the hosts of the plan that do not answer to `agent HOST true`, each with the reason. This host is not asked.
std::vector<std::string> unreachable_hosts(const Plan& plan, const std::vector<std::string>& agent,
                                           std::chrono::milliseconds deadline);

/// Returns the findings in the text that the launcher of the inspection printed. Throws std::runtime_error when there
/// is no whole report.
Findings findings_of(const Plan& plan, const std::string& printed, const std::string& program,
                     const std::string& launcher);

std::string describe(const Findings& findings);
nlohmann::json to_json(const Findings& findings);

}  // namespace spillway::ddlrun
