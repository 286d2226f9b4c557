// ddlrun: starts a program on all ranks of some hosts, after a check that this can work.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>

#include "core/error.h"
#include "core/version.h"
#include "ddl/comm/mpi.h"
#include "tools/cli/checks.h"
#include "tools/cli/command.h"
#include "tools/ddlrun/command.h"
#include "tools/ddlrun/inspect.h"

extern char** environ;

namespace spillway::ddlrun {
namespace {

Environment environment() {
  Environment variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

int say(int code, const std::string& text) {
  std::fprintf(stderr, "ddlrun: %s\n", text.substr(0, text.find('\n')).c_str());
  return code;
}

int run(const Request& request) try { return launch(request, environment()); } catch (const PreflightError& error) {
  return say(tools::kCommunication, error.what());
} catch (const BadRequest& error) {
  return say(tools::kBadRequest, error.what());
} catch (const std::exception& error) {
  return say(tools::kFailure, error.what());
}

/// Runs the inspection. A rank that cannot go on ends all ranks, because they may be waiting for it.
int run_inspection(const Request& request) try {
  inspect({.program = request.program.at(0),
           .levels = request.levels,
           .ranks = request.ranks.value_or(0),
           .deadline = std::chrono::seconds(request.timeout_seconds)});
  return tools::kOk;
} catch (const std::exception& error) {
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  say(tools::kCommunication, str(host, ": ", error.what()));
  if (ddl::built_with_mpi() && ddl::launched_by_mpi()) ddl::MpiRuntime::abort(tools::kCommunication);
  return tools::kCommunication;
}

void add_options(CLI::App& app, Request& request, bool& inspecting) {
  app.add_option("-H,--host", request.hosts, "Hosts and their slots (ranks), as in a:4,b:4; without a number one slot");
  app.add_option("--hostfile", request.hostfile, "A line per host: host, host:4 or host slots=4 max_slots=8");
  app.add_option("-n,--ranks", request.ranks, "Ranks in all; all slots unless given");
  app.add_option(
      "--levels", request.levels,
      "Which ranks are near each other, as in 4x2 or 4+2: checked against the ranks, and passed on to spillway");
  app.add_flag("--dry-run", request.dry_run, "Print hosts, ranks and the command; run nothing");
  app.add_flag("--no-preflight", request.no_preflight, "Launch without looking at the hosts before");
  app.add_flag("--preflight-only", request.preflight_only, "Look at the hosts, and launch nothing");
  app.add_option("--launcher", request.launcher, "mpirun of Open MPI, MPICH or Intel MPI")->capture_default_str();
  app.add_option("--agent", request.agent, "What reaches a host in place of ssh: CMD HOST COMMAND");
  app.add_option("--mpi-args", request.mpi_args, "Arguments for the launcher, in quotes");
  app.add_option("-x", request.exports, "A variable of all ranks, NAME or NAME=VALUE; may be repeated")
      ->allow_extra_args(false);
  app.add_flag("--allow-run-as-root", request.allow_run_as_root, "Tell Open MPI that root may launch");
  app.add_option("--timeout", request.timeout_seconds, "Seconds for hosts to answer, and for preflight's launch to end")
      ->capture_default_str()
      ->check(CLI::Range(1, 86400));
  app.add_option("--json", request.json_file, "File for the plan and what preflight found");
  app.add_flag("--inspect", inspecting)->group("");
}

int parse_and_run(int argc, char** argv) {
  CLI::App app(
      "ddlrun [OPTIONS] PROGRAM ARGUMENTS…\nStarts PROGRAM on all ranks of some hosts with mpirun, after having looked "
      "whether that can work.",
      "ddlrun");
  app.set_version_flag("--version", kVersion);
  app.prefix_command();
  app.footer("Example: ddlrun -H node01:4,node02:4 --levels 4x2 spillway train --steps 100");
  app.failure_message(
      [&app](const CLI::App*, const CLI::Error& error) { return tools::failure_text(app, error, "ddlrun"); });
  Request request;
  bool inspecting = false;
  add_options(app, request, inspecting);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? tools::kOk : tools::kBadRequest;
  }
  request.program = app.remaining();
  if (!request.program.empty() && request.program.front() == "--") request.program.erase(request.program.begin());
  if (!request.program.empty() && request.program.front().starts_with('-'))
    return say(tools::kBadRequest, str("unknown option: ", request.program.front(), " (see --help)"));
  return inspecting ? run_inspection(request) : run(request);
}

}  // namespace
}  // namespace spillway::ddlrun

int main(int argc, char** argv) {
  return spillway::ddlrun::parse_and_run(argc, argv);
}
