// Random cases from printed seeds: which ones run, and how one that fails is shrunk and run again.
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <string>

namespace spillway::testing {

inline constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

/// What a case may not exceed. A failure is shrunk by trying small ones.
struct CaseLimits {
  int64_t steps = kNoLimit;  ///< `--steps`: of training, or operations of a thread
  int64_t parts = kNoLimit;  ///< `--parts`: layers of a model, or threads
};

/// Runs the case of one seed; returns what went wrong, or nothing. What it throws went wrong, too.
using RandomCase = std::function<std::string(uint64_t seed, const CaseLimits& limits)>;

/// Runs `one` for `--cases` seeds (`usual_cases` without the flag) from `--seed` (1) on, printing each before it runs.
/// The first that fails is tried with smaller limits, as long as that is quick, and becomes a GoogleTest failure with
/// the command that runs it again. A program that calls this links random_cases.cpp, whose main() reads the flags.
void run_random_cases(int64_t usual_cases, const RandomCase& one);

}  // namespace spillway::testing
