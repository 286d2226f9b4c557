// Random cases from printed seeds: their selection, and how a failing case is shrunk and run again.
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <string>

namespace spillway::testing {

inline constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

/// The limits of a case. A failure is shrunk by trying small ones.
struct CaseLimits {
  int64_t steps = kNoLimit;  ///< `--steps`: steps of training, or operations of a thread
  int64_t parts = kNoLimit;  ///< `--parts`: layers of a model, or threads
};

/// A function that runs the case of one seed. It returns the failure, or an empty text. An exception is a failure, too.
using RandomCase = std::function<std::string(uint64_t seed, const CaseLimits& limits)>;

/// Runs `one` for `--cases` seeds (`usual_cases` without the flag) from `--seed` (1) on, printing each before it runs.
/// Tries the first that fails with smaller limits, as long as that is quick. Reports it as a GoogleTest failure with
/// the command that runs it again. A program that calls this links cases.cpp, whose main() reads the flags.
void run_random_cases(int64_t usual_cases, const RandomCase& one);

}  // namespace spillway::testing
