/// Looks, before a launch, whether it can work: hosts that answer, the same program everywhere, links that carry.
#pragma once
#include <chrono>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tools/ddlrun/compare.h"
#include "tools/ddlrun/launcher.h"

namespace spillway::ddlrun {

/// What one level's links were measured to do.
struct Link {
  double latency_seconds = 0;
  double bytes_per_second = 0;
};

struct Findings {
  std::vector<std::string> notes = {};
  std::vector<Inspected> hosts = {};  ///< empty when the inspection did not come about
  std::string levels = {};
  std::vector<Link> links = {};  ///< from level 1
  Verdict verdict = {};
  std::string launcher_words = {};  ///< what a failed inspection printed
};

struct PreflightOptions {
  Launcher launcher;
  LaunchOptions launch;
  std::string batch_system;  ///< not empty: its own launch reaches the hosts, and ssh is not tried
  std::string levels;
  std::string program;               ///< what is going to be launched
  std::chrono::seconds timeout{60};  ///< of each of the two parts
};

/// First whether hosts answer; when they do, what they and their links are. What is wrong is in the verdict.
/// Throws BadRequest when there is no agent or no launcher.
Findings preflight(const Plan& plan, const PreflightOptions& options);

/// The hosts, of those in the plan, that do not answer to `agent HOST true`, each with the reason. This host is not
/// asked.
std::vector<std::string> unreachable_hosts(const Plan& plan, const std::vector<std::string>& agent,
                                           std::chrono::milliseconds deadline);

/// From what the launcher of the inspection printed. Throws std::runtime_error when there is no whole report.
Findings findings_of(const Plan& plan, const std::string& printed, const std::string& program,
                     const std::string& launcher);

std::string describe(const Findings& findings);
nlohmann::json to_json(const Findings& findings);

}  // namespace spillway::ddlrun
