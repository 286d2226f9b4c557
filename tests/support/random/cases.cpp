#include "tests/support/random/cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string_view>

#include "core/error.h"

namespace spillway::testing {
namespace {

struct Flags {
  std::string program;
  uint64_t seed = 1;
  int64_t cases = 0;  // 0: the test's usual number
  CaseLimits limits;
};
Flags flags;

std::string run_one(const RandomCase& one, uint64_t seed, const CaseLimits& limits) {
  try {
    return one(seed, limits);
  } catch (const std::exception& error) {
    return str("threw: ", error.what());
  }
}

std::string command(uint64_t seed, const CaseLimits& limits) {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  std::string line =
      str(flags.program, " --gtest_filter=", test->test_suite_name(), ".", test->name(), " --cases=1 --seed=", seed);
  if (limits.steps != kNoLimit) line += str(" --steps=", limits.steps);
  if (limits.parts != kNoLimit) line += str(" --parts=", limits.parts);
  return line;
}

/// Lowers one limit after the other to the first power of two that still fails.
CaseLimits shrink(const RandomCase& one, uint64_t seed, std::string& failure) {
  const auto stop = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  CaseLimits smallest = flags.limits;
  for (int64_t CaseLimits::*limit : {&CaseLimits::steps, &CaseLimits::parts})
    for (int64_t value = 1; value < std::min<int64_t>(flags.limits.*limit, limit == &CaseLimits::steps ? 512 : 16);
         value *= 2) {
      if (std::chrono::steady_clock::now() > stop) return smallest;
      CaseLimits smaller = smallest;
      smaller.*limit = value;
      if (std::string still = run_one(one, seed, smaller); !still.empty()) {
        failure = std::move(still);
        smallest = smaller;
        break;
      }
    }
  return smallest;
}

int64_t number(std::string_view argument, std::string_view flag) {
  char* end = nullptr;
  const std::string text(argument.substr(flag.size()));
  const int64_t value = std::strtoll(text.c_str(), &end, 10);
  if (text.empty() || *end || value < 0) {
    std::fprintf(stderr, "%.*s: a whole number is wanted\n", static_cast<int>(argument.size()), argument.data());
    std::exit(2);
  }
  return value;
}

void parse(int argc, char** argv) {
  flags.program = argv[0];
  for (std::string_view argument : std::span(argv + 1, static_cast<size_t>(argc - 1))) {
    if (argument.starts_with("--seed="))
      flags.seed = static_cast<uint64_t>(number(argument, "--seed="));
    else if (argument.starts_with("--cases="))
      flags.cases = number(argument, "--cases=");
    else if (argument.starts_with("--steps="))
      flags.limits.steps = number(argument, "--steps=");
    else if (argument.starts_with("--parts="))
      flags.limits.parts = number(argument, "--parts=");
    else {
      std::fprintf(stderr, "unknown argument %s; known: --seed=S --cases=N --steps=N --parts=N, and GoogleTest's\n",
                   argument.data());
      std::exit(2);
    }
  }
}

}  // namespace

void run_random_cases(int64_t usual_cases, const RandomCase& one) {
  const int64_t cases = flags.cases ? flags.cases : usual_cases;
  for (int64_t i = 0; i < cases; ++i) {
    const uint64_t seed = flags.seed + static_cast<uint64_t>(i);
    std::printf("seed %llu\n", static_cast<unsigned long long>(seed));  // first, because a crash prints nothing more
    std::fflush(stdout);
    std::string failure = run_one(one, seed, flags.limits);
    if (failure.empty()) continue;
    std::string smaller = failure;
    const CaseLimits limits = shrink(one, seed, smaller);
    FAIL() << "seed " << seed << ": " << failure << "\nagain:   " << command(seed, flags.limits)
           << "\nsmaller: " << command(seed, limits) << "\n         " << smaller;
  }
}

}  // namespace spillway::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  spillway::testing::parse(argc, argv);
  return RUN_ALL_TESTS();
}
