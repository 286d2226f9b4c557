/// The request that ddlrun receives from its command line, and the launch that fulfills it.
#pragma once
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tools/ddlrun/hosts.h"

namespace spillway::ddlrun {

struct Request {
  std::string hosts, hostfile;
  std::optional<int64_t> ranks;
  std::string levels;
  std::string launcher = "mpirun";
  std::string agent, mpi_args;
  std::vector<std::string> exports;
  bool dry_run = false, no_preflight = false, preflight_only = false, allow_run_as_root = false;
  int64_t timeout_seconds = 60;
  std::string json_file;
  std::vector<std::string> program;  ///< PROGRAM and its arguments
};

/// An error that preflight found and that forbids the launch.
class PreflightError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Plans the launch, prints the plan, inspects the hosts, and runs the launcher. Returns the launcher's exit code, or 0
/// when less was asked for (--dry-run, --preflight-only). Then it prints on stdout, else on stderr, so that stdout is
/// the program's. The launcher replaces this process, unless signals must be translated for it
/// (supervise() in tools/ddlrun/process.h). Throws BadRequest, PreflightError, std::system_error.
int launch(const Request& request, const Environment& environment);

}  // namespace spillway::ddlrun
