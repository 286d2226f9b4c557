#include "benchmarks/allreduce/gloo.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "benchmarks/allreduce/gloo_worker.h"
#include "benchmarks/allreduce/inputs.h"
#include "core/error.h"
#include "tools/ddlrun/process.h"

namespace spillway::tools {

using nlohmann::json;

void require_gloo(const std::string& python) {
  constexpr const char* kQuestion =
      "import torch.distributed as d; raise SystemExit(0 if d.is_gloo_available() else 1)";
  const auto outcome = ddlrun::run({python, "-c", kQuestion}, std::chrono::minutes(2));
  if (outcome.exit_code != 0)
    throw BadRequest(str("--gloo: '", python, "' has no torch with gloo: ", ddlrun::last_line(outcome.err)));
}

json gloo_options(const std::vector<Problem>& problems, const TimingOptions& timing) {
  json taken = json::array();
  for (const Problem& problem : problems)
    if (problem.collective == Collective::allreduce && problem.reduction != ddl::Reduction::average)
      taken.push_back({{"bytes", problem.bytes()},
                       {"count", problem.count},
                       {"type", ddl::name_of(problem.element)},
                       {"op", name_of_op(problem.reduction)}});
  if (taken.empty()) throw BadRequest("--gloo measures allreduces by sum, max or min, and there is none");
  return {{"problems", taken},
          {"offset_bytes", problems.front().offset_bytes},
          {"timing",
           {{"warmup", timing.warmup},
            {"repeats", timing.repeats},
            {"iterations", timing.iterations},
            {"average", timing.average},
            {"back_to_back_average", timing.back_to_back_average}}}};
}

std::vector<std::string> gloo_command(const std::string& python, json options, const json& ranks,
                                      double timeout_seconds) {
  const bool one_host =
      std::all_of(ranks.begin(), ranks.end(), [&](const json& rank) { return rank["host"] == ranks[0]["host"]; });
  // The port is below those that systems give to programs that ask for any.
  std::uniform_int_distribution<int> port(20'000, 32'000);
  std::random_device random;
  options.update({{"ranks", ranks.size()},
                  {"address", one_host ? json("127.0.0.1") : ranks[0]["host"]},
                  {"port", port(random)},
                  {"timeout_seconds", timeout_seconds}});
  return {python, "-c", std::string(kGlooWorkerPy), options.dump()};
}

}  // namespace spillway::tools
