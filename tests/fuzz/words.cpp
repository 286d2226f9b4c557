#include "tests/fuzz/support.h"
#include "tests/fuzz/targets.h"
#include "tools/ddlrun/launcher.h"
#include "tools/ddlrun/look.h"
#include "tools/ddlrun/shell.h"

namespace spillway::fuzz {
using namespace swap;

void words(std::string_view input) {
  const unsigned kind = take_byte(input) % 3;
  const std::string text(input);
  taken([&] {
    if (kind == 0) {
      const auto words = ddlrun::unquoted(text, "--agent");
      require(ddlrun::unquoted(ddlrun::quoted(words), "the same") == words, "words are quoted as they are");
    } else if (kind == 1) {
      for (const auto& [name, file] : ddlrun::parse_ldd(text).found)
        require(file.starts_with('/'), "libraries have paths");
    } else {
      require(ddlrun::parse_version("mpirun", text).major >= 0, "versions are counted");
    }
  });
}

}  // namespace spillway::fuzz
