#include "benchmarks/allreduce/launcher.h"

#include <algorithm>

#include "core/error.h"
#include "tools/ddlrun/process.h"

namespace spillway::tools {
namespace {

constexpr std::chrono::seconds kVersionSeconds{30};

bool says(const std::vector<std::string>& words, std::initializer_list<const char*> names) {
  return std::any_of(words.begin(), words.end(), [&](const std::string& word) {
    return std::any_of(names.begin(), names.end(), [&](const char* name) { return word == name; });
  });
}

void append(std::vector<std::string>& words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
}

}  // namespace

std::optional<ddlrun::Launcher> ask_launcher(const std::string& command) {
  try {
    const ddlrun::Outcome outcome = ddlrun::run({command, "--version"}, kVersionSeconds);
    return ddlrun::parse_version(command, outcome.out.empty() ? outcome.err : outcome.out);
  } catch (const BadRequest&) {
    return std::nullopt;
  }
}

std::vector<std::string> completed_launcher(std::vector<std::string> words,
                                            const std::optional<ddlrun::Launcher>& launcher, bool is_root) {
  if (!launcher) return words;
  if (launcher->mpi == ddlrun::Mpi::intel && !says(words, {"I_MPI_PIN"})) append(words, {"-genv", "I_MPI_PIN", "off"});
  if (launcher->mpi != ddlrun::Mpi::open_mpi) return words;
  if (is_root && !says(words, {"--allow-run-as-root", "-allow-run-as-root"})) words.push_back("--allow-run-as-root");
  if (!says(words, {"--oversubscribe", "-oversubscribe", "--nooversubscribe", "-nooversubscribe"}))
    words.push_back("--oversubscribe");
  if (!says(words, {"--bind-to", "-bind-to"})) append(words, {"--bind-to", "none"});
  return words;
}

std::vector<std::string> forced_allreduce(const ddlrun::Launcher& open_mpi, const std::string& number) {
  std::vector<std::string> words;
  if (open_mpi.major >= 5) append(words, {"--mca", "coll", "^han"});  // `han` would be asked before `tuned`
  append(words, {"--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_allreduce_algorithm", number});
  return words;
}

}  // namespace spillway::tools
