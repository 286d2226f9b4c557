#include <cstdio>
#include <memory>

#include "runtime/data/phantom.h"
#include "tools/cli/command.h"
#include "tools/cli/numbers.h"

namespace spillway::tools {
using namespace runtime;

Run add_phantom(CLI::App& app) {
  struct Options {
    std::string out;
    int64_t cases = 10;
    int64_t edge = 96;
    uint64_t seed = 0;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("phantom", "Writes synthetic brain volumes with tumors as NIfTI cases in the BraTS layout");
  command->add_option("--out", options->out, "Output folder; created when missing, refused when it holds anything else")
      ->type_name("DIR")
      ->required();
  add_number(*command, "--cases", options->cases, "Number of cases")->type_name("N")->capture_default_str();
  add_number(*command, "--edge", options->edge, "Voxels along each side")->type_name("N")->capture_default_str();
  add_number(*command, "--seed", options->seed, "Random seed; the same seed gives the same cases")
      ->type_name("N")
      ->capture_default_str();
  command->footer("Example: spillway phantom --out phantoms --cases 10 --edge 96 --seed 1");
  return [options] {
    write_phantoms(options->out, options->cases, options->edge, options->seed, [](int64_t done, int64_t cases) {
      std::printf("\r%lld of %lld cases", static_cast<long long>(done), static_cast<long long>(cases));
      if (done == cases) std::printf("\n");
      std::fflush(stdout);
    });
    return kOk;
  };
}

}  // namespace spillway::tools
