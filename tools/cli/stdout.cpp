#include "tools/cli/stdout.h"

#include <cerrno>
#include <cstdio>
#include <string>
#include <system_error>

#include "core/program.h"

namespace spillway::tools {

int close_stdout(int code, const char* program) {
  const bool failed_before = std::ferror(stdout) != 0;
  errno = 0;
  if (std::fflush(stdout) == 0 && !failed_before) return code;
  const std::string reason = errno == 0 ? "" : ": " + std::generic_category().message(errno);
  std::fprintf(stderr, "%s: cannot write all of stdout%s\n", program, reason.c_str());
  return code == kOk ? kFailure : code;
}

}  // namespace spillway::tools
