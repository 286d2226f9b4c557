// Helpers that run the same code outside a Session and in every mode that could break it, and compare bits.
#pragma once
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "core/device/cpu_device.h"
#include "swap/schedule/step_trace.h"
#include "swap/session.h"
#include "tests/support/checking_observers.h"

namespace spillway::testing {
using namespace swap;

using Tensors = std::vector<at::Tensor>;
using Work = std::function<Tensors()>;

/// Bytes for scalars that LibTorch makes without an operator.
inline constexpr int64_t kScalars = 1 << 10;

inline SessionOptions evicting_everything() {
  return {.min_page_bytes = 1, .observer = std::make_shared<EvictEverything>()};
}

inline void expect_equal_tensors(const Tensors& expected, const Tensors& actual, const char* mode) {
  ASSERT_EQ(expected.size(), actual.size()) << mode;
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(expected[i].scalar_type() == actual[i].scalar_type() && expected[i].sizes() == actual[i].sizes() &&
                expected[i].strides() == actual[i].strides() && at::equal(expected[i], actual[i]))
        << mode << ": tensor " << i;
  }
}

inline Tensors from_seed(const Work& work) {
  at::manual_seed(0);
  return work();
}

/// Checks `work` with everything evicted after every operator.
inline void expect_unchanged_when_evicted(const Work& work, const Tensors& plain) {
  Tensors paged;
  SessionStats stats;
  {
    Session session(evicting_everything());
    paged = from_seed(work);
    stats = session.stats();
  }
  expect_equal_tensors(plain, paged, "evicting everything");
  EXPECT_GT(stats.pager.page_ins, 0) << "nothing was ever absent";
}

/// Checks `work` under the budget of the neediest operator. The first step pages on demand, and the second follows its
/// schedule.
inline void expect_unchanged_at_the_floor(const Work& work, const Tensors& plain) {
  const SessionOptions options{.min_page_bytes = 1, .small_page_bytes = 0};
  int64_t floor = 0;
  {
    Session session(options);
    auto step = session.step();
    expect_equal_tensors(plain, from_seed(work), "without a budget");
    step.finish();
    floor = session.trace()->floor_bytes() + kScalars;
  }
  SessionOptions tight = options;
  tight.budget_bytes = floor;
  Tensors first, second;
  {
    Session session(tight);
    for (Tensors* result : {&first, &second}) {
      first.clear();  // the floor is for one run's results
      auto step = session.step();
      *result = from_seed(work);
      if (result == &first) expect_equal_tensors(plain, first, "at the floor, first step");
    }
    EXPECT_LE(session.stats().peak_bytes, floor);
  }
  expect_equal_tensors(plain, second, "at the floor, second step");
}

/// Checks that no operator writes an argument that its schema does not declare written.
inline void expect_honest_schemas(const Work& work) {
  auto checker = std::make_shared<SchemaChecker>();
  {
    Session session({.min_page_bytes = 1, .observer = checker});
    (void)from_seed(work);
  }
  EXPECT_TRUE(checker->liars().empty()) << *checker->liars().begin() << " writes what its schema does not say";
  EXPECT_GT(checker->compared(), 0u);
}

/// Checks that `work` gives the same bits in every mode and leaves no memory behind. `work` runs several times, each
/// from the same seed, and must return strided tensors.
inline void expect_unchanged(const Work& work) {
  Ledger& ledger = CpuDevice::instance().ledger();
  const Tensors plain = from_seed(work);
  const int64_t before = ledger.used_bytes();
  expect_unchanged_when_evicted(work, plain);
  expect_unchanged_at_the_floor(work, plain);
  expect_honest_schemas(work);
  EXPECT_EQ(ledger.used_bytes(), before) << "something was left behind";
}

}  // namespace spillway::testing
