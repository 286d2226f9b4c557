// spillway: trains models that do not fit, and measures how well. Arguments and the environment are read here and
// nowhere else.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <system_error>

#include "core/program.h"
#include "ddl/comm/mpi.h"
#include "runtime/interruption/failure.h"
#include "tools/cli/checks.h"
#include "tools/cli/command.h"
#include "tools/cli/help.h"
#include "tools/cli/interrupts.h"
#include "tools/cli/launch.h"
#include "tools/cli/stdout.h"

namespace spillway::tools {
using namespace runtime;
namespace {

/// Ends this process, or with ranks the whole launch, because other ranks may be waiting for this one. The rank that
/// has the cause prints first, then rank 0. The other ranks print only when these have nothing to say, so they wait
/// longer: on a busy host a launcher takes a second to end them.
int fail(const Failure& failure) {
  if (failure.of_another)
    ::usleep(3'000'000);
  else if (launched_rank() != 0)
    ::usleep(2'000'000);
  std::fprintf(stderr, "spillway: %s\n", failure.text.c_str());
  if (ddl::launched_by_mpi()) ddl::MpiRuntime::abort(failure.code);
  return failure.code;
}

int run(const Run& command) {
  try {
    return command();
  } catch (const std::exception& error) {
    return fail(failure_of(error));
  }
}

int parse_and_run(int argc, char** argv) {
  CLI::App app("Trains PyTorch models that do not fit, under a byte budget.", "spillway");
  app.set_version_flag("--version", kVersion);
  app.require_subcommand(1);
  app.formatter(std::make_shared<HelpFormatter>());
  app.failure_message(
      [&app](const CLI::App*, const CLI::Error& error) { return failure_text(app, error, "spillway"); });
  struct Command {
    const char* name;
    Run run;
  };
  const Command commands[] = {{"train", add_train(app)},         {"plan", add_plan(app)},
                              {"reproduce", add_reproduce(app)}, {"phantom", add_phantom(app)},
                              {"bench", add_bench(app)},         {"topo", add_topo(app)}};
  refuse_empty_values(app);
  if (asks_for_markdown_help(argc, argv)) return std::fputs(markdown_help(app).c_str(), stdout), kOk;
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kOk : kBadRequest;
  }
  for (const Command& command : commands)
    if (app.got_subcommand(command.name)) return run(command.run);
  return kBadRequest;
}

}  // namespace
}  // namespace spillway::tools

int main(int argc, char** argv) {
  spillway::tools::report_file_size_limits();
  const int code = spillway::tools::close_stdout(spillway::tools::parse_and_run(argc, argv), "spillway");
  // All that a run held has ended with it. To end LibTorch's own objects would take a quarter of a short run's time.
  std::_Exit(code);
}
