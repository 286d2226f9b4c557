// spillway: trains what does not fit, and measures how well. Arguments and the environment are read here and nowhere
// else.
#include <c10/util/Exception.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <system_error>

#include "core/error.h"
#include "ddl/communicator.h"
#include "ddl/mpi.h"
#include "runtime/version.h"
#include "tools/command.h"

namespace spillway::tools {
namespace {

/// One line on stderr: the first line of what was thrown.
void print_error(const char* text) {
  std::string line(text);
  line = line.substr(0, line.find('\n'));
  std::fprintf(stderr, "spillway: %s\n", line.c_str());
}

/// Ends this process, or with ranks the whole launch: the others may be waiting for this one. Rank 0 speaks first; the
/// others only when it has nothing to say.
int fail(ExitCode code, const char* text) {
  if (!ddl::launched_by_mpi()) {
    print_error(text);
    return code;
  }
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  if (rank && std::string_view(rank) != "0") ::usleep(700'000);
  print_error(text);
  ddl::MpiRuntime::abort(code);
}

int run(const Run& command) {
  try {
    return command();
  } catch (const InfeasibleBudget& error) {
    return fail(kInfeasible, error.what());
  } catch (const OutOfBudget& error) {
    return fail(kInfeasible, error.what());
  } catch (const ddl::CommError& error) {
    return fail(kCommunication, error.what());
  } catch (const BadRequest& error) {
    return fail(kBadRequest, error.what());
  } catch (const DeviceError& error) {
    return fail(kBadRequest, error.what());
  } catch (const c10::Error& error) {
    return fail(kFailure, error.what_without_backtrace());
  } catch (const std::exception& error) {
    return fail(kFailure, error.what());
  }
}

int parse_and_run(int argc, char** argv) {
  CLI::App app("Trains PyTorch models that do not fit, under a byte budget.", "spillway");
  app.set_version_flag("--version", kVersion);
  app.require_subcommand(1);
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    std::string what = error.what();
    // CLI11 says "The following argument(s) was/were not expected: --foo".
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError))
      what = "unknown option" + what.substr(what.rfind(": "));
    return "spillway: " + what + " (see --help)\n";
  });
  struct Command {
    const char* name;
    Run run;
  };
  const Command commands[] = {
      {"train", add_train(app)}, {"phantom", add_phantom(app)}, {"bench", add_bench(app)}, {"topo", add_topo(app)}};
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
  return spillway::tools::parse_and_run(argc, argv);
}
