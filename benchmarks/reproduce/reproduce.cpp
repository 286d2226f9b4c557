#include "benchmarks/reproduce/reproduce.h"

#include <utility>

#include "benchmarks/reproduce/published_runs.h"
#include "benchmarks/reproduce/reproduce_pipelines.h"
#include "core/error.h"

namespace spillway::runtime {
namespace {

std::vector<NamedReproduction> reproductions_by_runs() {
  std::vector<NamedReproduction> all = kfac_reproductions();
  for (const auto& more : {paging_reproductions(), allreduce_reproductions()})
    all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace

std::vector<std::string> reproductions() {
  std::vector<std::string> names;
  for (const auto& [name, make] : reproductions_by_runs()) names.emplace_back(name);
  for (std::string& name : pipeline_reproductions()) names.push_back(std::move(name));
  return names;
}

Reproduction reproduce(std::string_view name, const BlockTimesSource& blocks) {
  for (const auto& [own, make] : reproductions_by_runs()) {
    if (own != name) continue;
    if (!blocks.is_own()) return make();
    throw BadRequest(
        str("'", name, "' takes no block times; those of --times are for names that begin with pipefisher-"));
  }
  if (std::optional<Reproduction> pipeline = reproduce_pipeline(name, blocks)) return *std::move(pipeline);
  std::string known;
  for (const std::string& own : reproductions()) known += str(known.empty() ? "" : ", ", own);
  throw BadRequest(str("there is nothing to reproduce called '", name, "'; there are ", known));
}

}  // namespace spillway::runtime
