#include "kfac/inverse/background_solver.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <random>
#include <stdexcept>

#include "core/error.h"

namespace spillway::kfac {
namespace {

at::Tensor covariance(int64_t groups, int64_t side, at::ScalarType type) {
  const auto x = at::randn({groups, 2 * side, side}, type);
  return x.transpose(1, 2).bmm(x);
}

at::Tensor view(void* data, at::IntArrayRef sizes, at::ScalarType type) {
  return at::from_blob(data, sizes, at::TensorOptions(type));
}

void sleep_for_up_to(int64_t microseconds) {
  thread_local std::mt19937_64 random{std::random_device{}()};
  std::this_thread::sleep_for(std::chrono::microseconds(random() % static_cast<uint64_t>(microseconds)));
}

/// The bytes that this thread was given by the operator new below.
thread_local int64_t aligned_bytes = 0;

}  // namespace
}  // namespace spillway::kfac

// These replace the operators of the whole program. The solver's matrices and workspace come from them.
void* operator new(size_t bytes, std::align_val_t alignment) {
  const auto line = static_cast<size_t>(alignment);
  void* data = std::aligned_alloc(line, (bytes + line - 1) / line * line);
  if (!data) throw std::bad_alloc();
  spillway::kfac::aligned_bytes += static_cast<int64_t>(bytes);
  return data;
}
void operator delete(void* data, std::align_val_t) noexcept {
  std::free(data);
}
void operator delete(void* data, size_t, std::align_val_t) noexcept {
  std::free(data);
}
// A sanitizer's own operator new[] would not call the operator new above.
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return operator new(bytes, alignment);
}
void operator delete[](void* data, std::align_val_t) noexcept {
  std::free(data);
}
void operator delete[](void* data, size_t, std::align_val_t) noexcept {
  std::free(data);
}

namespace spillway::kfac {

TEST(BackgroundSolverTest, DecomposesEveryMatrixOfEveryStack) {
  for (auto type : {at::kFloat, at::kDouble}) {
    const int64_t bytes = type == at::kFloat ? 4 : 8;
    BackgroundSolver solver({{2, 5, bytes}, {1, 1, bytes}, {3, 40, bytes}});
    std::vector<at::Tensor> factors;
    for (const auto& [groups, side] : std::vector<std::pair<int64_t, int64_t>>{{2, 5}, {1, 1}, {3, 40}}) {
      factors.push_back(covariance(groups, side, type));
      view(solver.matrices(factors.size() - 1), factors.back().sizes(), type).copy_(factors.back());
    }
    solver.start();
    solver.wait();
    for (size_t i = 0; i < factors.size(); ++i) {
      const auto rows = view(solver.matrices(i), factors[i].sizes(), type);
      const auto values = view(solver.values(i), {factors[i].size(0), factors[i].size(1)}, type);
      const auto restored = (rows.transpose(1, 2) * values.unsqueeze(1)).bmm(rows);
      const double tolerance = (type == at::kFloat ? 1e-5 : 1e-13) * factors[i].abs().max().item<double>();
      EXPECT_LT((restored - factors[i]).abs().max().item<double>(), tolerance);
    }
  }
}

TEST(BackgroundSolverTest, GivesTheSameBitsWhateverItsPaceAndWhatRunsBesideIt) {
  const auto factor = covariance(2, 150, at::kFloat);
  at::Tensor expected;
  for (int run = 0; run < 5; ++run) {
    BackgroundSolver solver(
        {{2, 150, 4}}, run == 0 ? std::function<void()>() : [] { sleep_for_up_to(20000); });
    view(solver.matrices(0), {2, 150, 150}, at::kFloat).copy_(factor);
    solver.start();
    for (int i = 0; i < run; ++i) (void)factor.bmm(factor);
    solver.wait();
    const auto found = view(solver.matrices(0), {2, 150, 150}, at::kFloat).clone();
    if (run == 0) expected = found;
    EXPECT_TRUE(found.equal(expected)) << run;
  }
}

TEST(BackgroundSolverTest, RethrowsWhatEndedItAndCanBeStartedAgain) {
  bool fail = true;
  BackgroundSolver solver({{1, 3, 8}}, [&] {
    if (fail) throw std::runtime_error("no more");
  });
  view(solver.matrices(0), {1, 3, 3}, at::kDouble).copy_(at::eye(3, at::kDouble));
  solver.start();
  EXPECT_THROW(solver.start(), std::logic_error);
  EXPECT_THROW(solver.wait(), std::runtime_error);
  EXPECT_NO_THROW(solver.wait());
  fail = false;
  solver.start();
  EXPECT_NO_THROW(solver.wait());
  EXPECT_TRUE(view(solver.values(0), {1, 3}, at::kDouble).equal(at::ones({1, 3}, at::kDouble)));
}

TEST(BackgroundSolverTest, StopsWhenDestroyedWhileItRuns) {
  std::atomic<int64_t> begun = 0;
  {
    BackgroundSolver solver({{1000, 4, 4}}, [&] {
      ++begun;
      sleep_for_up_to(4000);
    });
    solver.start();
    while (begun == 0) std::this_thread::yield();
  }
  EXPECT_LT(begun, 1000);
}

TEST(BackgroundSolverTest, RefusesEmptyMatricesAndOtherTypes) {
  EXPECT_THROW(BackgroundSolver({{0, 3, 4}}), BadRequest);
  EXPECT_THROW(BackgroundSolver({{1, 0, 4}}), BadRequest);
  EXPECT_THROW(BackgroundSolver({{1, 3, 2}}), BadRequest);
}

TEST(BackgroundSolverTest, SaysHowManyBytesItAllocates) {
  for (const std::vector<MatrixStack>& stacks :
       {std::vector<MatrixStack>{{1, 1, 4}}, {{2, 10, 4}, {1, 3, 4}}, {{3, 37, 8}, {1, 60, 4}}}) {
    aligned_bytes = 0;
    const BackgroundSolver solver(stacks);
    int64_t largest = 0;
    for (const MatrixStack& stack : stacks) largest = std::max(largest, stack.side);
    EXPECT_EQ(solver.bytes(), aligned_bytes + 4 * (3 + 5 * largest)) << "the latter are LAPACK's ints";
  }
}

}  // namespace spillway::kfac
