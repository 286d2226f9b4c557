#include "tools/ddlrun/command.h"

#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/program.h"
#include "ddl/comm/mpi.h"
#include "tools/cli/write_json.h"
#include "tools/ddlrun/batch_systems.h"
#include "tools/ddlrun/discover.h"
#include "tools/ddlrun/launcher.h"
#include "tools/ddlrun/preflight.h"
#include "tools/ddlrun/process.h"
#include "tools/ddlrun/shell.h"

namespace spillway::ddlrun {
namespace {

using nlohmann::json;

constexpr std::chrono::seconds kVersionSeconds{30};

LaunchOptions launch_options(const Request& request, const Environment& environment) {
  LaunchOptions options{.agent = unquoted(request.agent, "--agent"),
                        .mpi_args = unquoted(request.mpi_args, "--mpi-args"),
                        .exports = request.exports,
                        .allow_run_as_root = request.allow_run_as_root};
  for (const std::string& one : options.exports) check_export(one, environment);
  return options;
}

Launcher ask_launcher(const std::string& command) {
  const Outcome outcome = run({command, "--version"}, kVersionSeconds);
  if (outcome.timed_out)
    throw BadRequest(str("--launcher ", command, " --version did not end in ", kVersionSeconds.count(), " s"));
  return parse_version(command, outcome.out.empty() ? outcome.err : outcome.out);
}

/// Throws BadRequest when there is no such program as `agent`, because some launchers would then wait for ever.
void require_agent(const std::vector<std::string>& agent, const std::string& path) {
  if (!agent.empty() && find_program(agent.front(), path).empty())
    throw BadRequest(str("--agent: there is no program '", agent.front(), "' (searched in PATH)"));
}

/// Returns the reason why Open MPI would refuse to run as root, or empty. It is told here because Open MPI's own answer
/// would be a page of text, after preflight.
std::string what_root_lacks(const Launcher& launcher, const Request& request, const Environment& environment) {
  const bool allowed = request.allow_run_as_root || (environment.contains("OMPI_ALLOW_RUN_AS_ROOT") &&
                                                     environment.contains("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"));
  if (launcher.mpi != Mpi::open_mpi || ::geteuid() != 0 || allowed) return "";
  return "Open MPI does not run as root unless told to: --allow-run-as-root, or another user";
}

std::string describe(const Plan& plan, const Launcher& launcher, const std::vector<std::string>& command) {
  std::string text = host_table(plan) + "\n" + rank_tree(plan) + "\n";
  for (const std::string& note : plan.notes) text += str("note: ", note, "\n");
  return text + str("launcher: ", launcher.version, "\n", quoted(command), "\n");
}

json to_json(const Plan& plan, const Launcher& launcher, const std::vector<std::string>& command) {
  json hosts = json::array();
  for (size_t i = 0; i < plan.hosts.hosts.size(); ++i)
    hosts.push_back({{"name", plan.hosts.hosts[i].name},
                     {"slots", plan.hosts.hosts[i].slots},
                     {"ranks", i < plan.used.size() ? plan.used[i].slots : 0}});
  return {{"version", kVersion},        {"source", plan.hosts.source},   {"hosts", hosts},
          {"world_size", plan.ranks()}, {"levels", plan.levels.shape()}, {"launcher", launcher.version},
          {"command", command},         {"notes", plan.notes},           {"preflight", nullptr}};
}

void refuse_contradictions(const Request& request) {
  if (request.program.empty())
    throw BadRequest("no PROGRAM is given; ddlrun [options] PROGRAM ARGUMENTS… (see --help)");
  if (request.preflight_only && (request.no_preflight || request.dry_run))
    throw BadRequest(str("--preflight-only is given with ", request.dry_run ? "--dry-run" : "--no-preflight",
                         "; allowed: one of them"));
  const bool probes = !request.dry_run && !request.no_preflight;
  if (probes && !ddl::built_with_mpi())
    throw BadRequest(
        "this ddlrun was built without MPI, so it cannot inspect the hosts; --no-preflight launches without");
}

Findings look(const Request& request, const Plan& plan, const Launcher& launcher, const LaunchOptions& options,
              const std::string& batch) {
  return preflight(plan, {.launcher = launcher,
                          .launch = options,
                          .batch_system = batch,
                          .levels = request.levels,
                          .program = request.program.front(),
                          .timeout = std::chrono::seconds(request.timeout_seconds)});
}

[[noreturn]] void fail(const std::vector<std::string>& errors) {
  throw PreflightError(
      str("[preflight] ", errors.front(), errors.size() == 1 ? "" : str(" (and ", errors.size() - 1, " more)")));
}

}  // namespace

int launch(const Request& request, const Environment& environment) {
  refuse_contradictions(request);
  const LaunchOptions options = launch_options(request, environment);
  const Plan plan = make_plan(find_hosts(request.hosts, request.hostfile, environment), request.ranks, request.levels);
  const auto program = with_levels(request.program, request.levels);
  const std::string path = environment.contains("PATH") ? environment.at("PATH") : kDefaultPath;
  if (!request.dry_run) require_agent(options.agent, path);
  const Launcher launcher = request.dry_run ? guess_launcher(request.launcher, path) : ask_launcher(request.launcher);
  const std::string batch = batch_system(environment), root = what_root_lacks(launcher, request, environment);
  const auto command = launch_command(launcher, options, plan, batch, program);
  const auto shown = launch_command(launcher, without_secrets(options), plan, batch, program);
  if (!root.empty() && !request.dry_run) throw BadRequest(root);

  std::FILE* const out = request.dry_run || request.preflight_only ? stdout : stderr;
  const auto print = [&](const std::string& text) {
    std::fputs(text.c_str(), out);
    std::fflush(out);
  };
  print(describe(plan, launcher, shown));
  if (!root.empty()) print(str("note: ", root, "\n"));
  json result = to_json(plan, launcher, shown);
  std::vector<std::string> errors;
  if (!request.dry_run && !request.no_preflight) {
    const Findings findings = look(request, plan, launcher, options, batch);
    print(str("\n", describe(findings)));
    result["preflight"] = to_json(findings);
    errors = findings.verdict.errors;
  }
  if (!request.json_file.empty()) tools::write_json(result, request.json_file);
  if (!errors.empty()) fail(errors);
  if (request.dry_run || request.preflight_only) return kOk;
  if (ends_on_request(launcher, program)) return supervise(command);
  become(command);
}

}  // namespace spillway::ddlrun
