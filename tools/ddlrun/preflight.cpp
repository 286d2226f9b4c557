#include "tools/ddlrun/preflight.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "core/error.h"
#include "core/json_text.h"
#include "ddl/comm/mpi.h"
#include "tools/ddlrun/inspect.h"
#include "tools/ddlrun/process.h"
#include "tools/ddlrun/this_host.h"

namespace spillway::ddlrun {
namespace {

using nlohmann::json;

std::vector<std::string> agent_of(const PreflightOptions& options) {
  if (!options.launch.agent.empty()) return options.launch.agent;
  const auto seconds = std::min<int64_t>(10, options.timeout.count());
  return {"ssh", "-o", "BatchMode=yes", "-o", str("ConnectTimeout=", seconds)};
}

std::vector<std::string> inspection_command(const Plan& plan, const PreflightOptions& options) {
  std::vector<std::string> command{std::filesystem::read_symlink("/proc/self/exe").string(),
                                   "--inspect",
                                   "-n",
                                   str(plan.ranks()),
                                   "--timeout",
                                   str(options.timeout.count())};
  if (!options.levels.empty()) command.insert(command.end(), {"--levels", options.levels});
  command.insert(command.end(), {"--", options.program});
  return launch_command(options.launcher, options.launch, plan, options.batch_system, command);
}

/// Returns the JSON after each mark in the printed text.
std::vector<json> reports_in(const std::string& printed) {
  std::vector<json> reports;
  const std::string mark = kReport;
  for (size_t at = printed.find(mark); at != std::string::npos; at = printed.find(mark, at + 1)) {
    const size_t begin = at + mark.size();
    reports.push_back(parse_json(std::string_view(printed).substr(begin, printed.find('\n', begin) - begin)));
  }
  return reports;
}

void inspect_hosts(const Plan& plan, const PreflightOptions& options, Findings& findings) {
  const Outcome outcome = run(inspection_command(plan, options), options.timeout);
  try {
    if (outcome.timed_out)
      throw std::runtime_error(
          str("the ranks did not come together within ", options.timeout.count(),
              " s: is there a firewall between the hosts, or a network interface that does not lead to "
              "the others? Or allow more by --timeout"));
    if (outcome.exit_code != 0)
      throw std::runtime_error(str("the inspecting launch ended with ", outcome.exit_code, "; what it said is above"));
    Findings found = findings_of(plan, outcome.out, options.program, options.launcher.version);
    found.notes.insert(found.notes.begin(), findings.notes.begin(), findings.notes.end());
    findings = std::move(found);
  } catch (const std::exception& error) {
    findings.launcher_words = outcome.err;
    findings.verdict.errors.push_back(error.what());
  }
}

}  // namespace

std::vector<std::string> unreachable_hosts(const Plan& plan, const std::vector<std::string>& agent,
                                           std::chrono::milliseconds deadline) {
  std::vector<std::string> names, unreachable;
  std::vector<std::vector<std::string>> commands;
  for (const Host& host : plan.used) {
    if (is_this_host(host.name)) continue;
    names.push_back(host.name);
    commands.push_back(agent);
    commands.back().insert(commands.back().end(), {host.name, "true"});
  }
  const auto outcomes = run_all(commands, deadline);
  for (size_t i = 0; i < names.size(); ++i) {
    const Outcome& outcome = outcomes[i];
    if (outcome.exit_code == 0 && !outcome.timed_out) continue;
    std::string reason = last_line(outcome.err);
    if (reason.empty()) reason = str(agent.front(), " ended with ", outcome.exit_code);
    if (outcome.timed_out) reason = str("no answer in ", deadline.count() / 1000, " s");
    unreachable.push_back(str(names[i], " (", reason, ")"));
  }
  return unreachable;
}

Findings findings_of(const Plan& plan, const std::string& printed, const std::string& program,
                     const std::string& launcher) {
  const auto reports = reports_in(printed);
  if (reports.empty()) throw std::runtime_error("the inspecting launch ended without a report");
  const json& report = reports.front();
  if (reports.size() > 1 || report.at("world_size") != plan.ranks())
    throw std::runtime_error(str("of ", plan.ranks(), " ranks one sees ", report.at("world_size"), ": the launcher is ",
                                 launcher, "'s, and ddlrun was built with another MPI, ",
                                 report.value("mpi", std::string("unknown")), "; --launcher names its own"));
  Findings findings;
  findings.levels = report.at("levels");
  for (const json& link : report.at("costs"))
    findings.links.push_back({link.at("latency_seconds"), link.at("bytes_per_second")});
  std::vector<int> found;  // each rank's host, as the ranks number hosts
  for (const json& host : report.at("hosts")) found.push_back(whole_number(host, "a rank's host", 0, plan.ranks()));
  const bool as_planned = found == plan.host_of_rank;
  for (const json& one : report.at("records")) {
    const size_t rank = whole_number(one.at("rank"), "a rank");
    Inspected host{.name = {},
                   .ranks = std::count(found.begin(), found.end(), found.at(rank)),
                   .record = record_of(one.at("record"))};
    host.name = as_planned ? plan.used[plan.host_of_rank[rank]].name : host.record.hostname;
    findings.hosts.push_back(std::move(host));
  }
  findings.verdict = compare(findings.hosts, program);
  if (!as_planned) {
    std::vector<std::string> places;
    for (const Inspected& host : findings.hosts) places.push_back(str(host.name, " ", host.ranks));
    findings.verdict.warnings.push_back(str("ranks are not placed as drawn, but: ", join(places)));
  }
  return findings;
}

Findings preflight(const Plan& plan, const PreflightOptions& options) {
  Findings findings;
  const bool own_launch = !options.batch_system.empty() && options.launch.agent.empty();
  if (own_launch) {
    findings.notes.push_back(str("whether hosts answer is left to ", options.batch_system, "'s own launch"));
  } else {
    const auto silent = unreachable_hosts(plan, agent_of(options), options.timeout);
    if (!silent.empty()) {
      findings.verdict.errors.push_back(str("unreachable: ", join(silent)));
      return findings;
    }
  }
  inspect_hosts(plan, options, findings);
  return findings;
}

std::string describe(const Findings& findings) {
  std::string text = findings.launcher_words;
  if (!text.empty() && text.back() != '\n') text += '\n';
  if (!findings.hosts.empty()) {
    text += inspection_table(findings.hosts);
    for (size_t level = 0; level < findings.links.size(); ++level) {
      char line[100];
      std::snprintf(line, sizeof line, "level %zu: latency %.1f us, %.3f GB/s a link, each way\n", level + 1,
                    1e6 * findings.links[level].latency_seconds, findings.links[level].bytes_per_second / 1e9);
      text += line;
    }
    if (findings.verdict.errors.empty())
      text += str("the same on all hosts: ", findings.hosts.front().record.program, ", ",
                  findings.hosts.front().record.files.size() - 1, " libraries, ",
                  split(findings.hosts.front().record.mpi, ',').front(), "\n");
  }
  for (const auto& note : findings.notes) text += str("note: ", note, "\n");
  for (const auto& warning : findings.verdict.warnings) text += str("warning: ", warning, "\n");
  if (findings.verdict.errors.size() > 1)  // a single error is the message that the command ends with
    for (const auto& error : findings.verdict.errors) text += str("error: ", error, "\n");
  return text;
}

json to_json(const Findings& findings) {
  json hosts = json::array(), links = json::array();
  for (const Inspected& host : findings.hosts) {
    json record = to_json(host.record);
    record.update({{"name", host.name}, {"ranks", host.ranks}});
    hosts.push_back(std::move(record));
  }
  for (const Link& link : findings.links)
    links.push_back({{"latency_seconds", link.latency_seconds}, {"bytes_per_second", link.bytes_per_second}});
  return {{"hosts", hosts},
          {"levels", findings.levels.empty() ? json(nullptr) : json(findings.levels)},
          {"links", links},
          {"notes", findings.notes},
          {"warnings", findings.verdict.warnings},
          {"errors", findings.verdict.errors}};
}

}  // namespace spillway::ddlrun
