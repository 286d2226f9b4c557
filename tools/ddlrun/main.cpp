// ddlrun: starts a program on all ranks of some hosts, after a check that this can work.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>

#include "core/error.h"
#include "core/program.h"
#include "ddl/comm/mpi.h"
#include "tools/cli/checks.h"
#include "tools/cli/command.h"
#include "tools/cli/help.h"
#include "tools/cli/interrupts.h"
#include "tools/cli/numbers.h"
#include "tools/cli/stdout.h"
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

void add_host_flags(CLI::App& app, Request& request) {
  app.option_defaults()->group("Hosts and ranks");
  app.add_option("-H,--host", request.hosts,
                 "Hosts and their slots, one slot per rank, as in a:4,b:4; one slot without a number")
      ->type_name("HOSTS")
      ->default_str("by the batch system");
  app.add_option("--hostfile", request.hostfile, "File with a line per host: host, host:4 or host slots=4 max_slots=8")
      ->type_name("FILE")
      ->default_str("none");
  tools::add_number(app, "-n,--ranks", request.ranks,
                    "Number of ranks; they fill the hosts' slots one host after another")
      ->type_name("N")
      ->default_str("all slots");
  app.add_option("--levels", request.levels,
                 "Levels of the topology, as in 4x2 or 4+2; they are checked and passed on to spillway")
      ->type_name("LEVELS")
      ->default_str("ranks of a host, hosts");
}

void add_launch_flags(CLI::App& app, Request& request) {
  app.option_defaults()->group("Launch");
  app.add_option("--launcher", request.launcher, "Launcher: mpirun of Open MPI 4 or 5, MPICH or Intel MPI")
      ->type_name("CMD")
      ->capture_default_str();
  app.add_option("--agent", request.agent, "Remote shell in place of ssh, called as CMD HOST COMMAND")
      ->type_name("CMD")
      ->default_str("ssh");
  app.add_option("--mpi-args", request.mpi_args, "Further arguments for the launcher, in quotes")
      ->type_name("ARGS")
      ->default_str("none");
  app.add_option("-x", request.exports, "Environment variable for all ranks, NAME or NAME=VALUE; may be repeated")
      ->type_name("NAME=VALUE")
      ->default_str("none")
      ->allow_extra_args(false);
  app.add_flag("--allow-run-as-root", request.allow_run_as_root, "Allow Open MPI to run as root");
}

void add_look_flags(CLI::App& app, Request& request) {
  app.option_defaults()->group("Preflight and output");
  app.add_flag("--dry-run", request.dry_run, "Print hosts, ranks and the command; run nothing");
  app.add_flag("--no-preflight", request.no_preflight, "Launch without checking the hosts first");
  app.add_flag("--preflight-only", request.preflight_only, "Check the hosts and launch nothing");
  tools::add_number(app, "--timeout", request.timeout_seconds,
                    "Seconds to wait for hosts to answer and for preflight's launch to end")
      ->type_name("SECONDS")
      ->capture_default_str()
      ->check(tools::between(1, 86400));
  app.add_option("--json", request.json_file, "File for the launch plan and preflight's findings")
      ->type_name("FILE")
      ->default_str("none");
}

void add_options(CLI::App& app, Request& request, bool& inspecting) {
  add_host_flags(app, request);
  add_launch_flags(app, request);
  add_look_flags(app, request);
  app.add_flag("--inspect", inspecting)->group("");
}

int parse_and_run(int argc, char** argv) {
  CLI::App app("Starts a program on several hosts with mpirun, after a check that this can work", "ddlrun");
  app.formatter(std::make_shared<tools::HelpFormatter>());
  app.set_version_flag("--version", kVersion);
  app.prefix_command();
  app.footer("Example: ddlrun -H node01:4,node02:4 --levels 4x2 spillway train --steps 100");
  app.failure_message(
      [&app](const CLI::App*, const CLI::Error& error) { return tools::failure_text(app, error, "ddlrun"); });
  Request request;
  bool inspecting = false;
  add_options(app, request, inspecting);
  tools::refuse_empty_values(app);
  if (tools::asks_for_markdown_help(argc, argv))
    return std::fputs(tools::markdown_help(app).c_str(), stdout), tools::kOk;
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
  spillway::tools::report_file_size_limits();
  return spillway::tools::close_stdout(spillway::ddlrun::parse_and_run(argc, argv), "ddlrun");
}
