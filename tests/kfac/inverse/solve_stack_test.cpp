// Tests of the order in which a GPU's eigensolver takes matrices, on a double of the solver.
#include "kfac/inverse/solve_stack.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

namespace spillway::kfac {
namespace {

/// A solver that refuses batches above a size, and all calls with some matrices.
struct RefusingSolver {
  bool solve(int64_t begin, int64_t count) {
    calls.emplace_back(begin, count);
    if (count > largest_batch) return false;
    for (int64_t i = begin; i < begin + count; ++i)
      if (bad.contains(i)) return false;
    for (int64_t i = begin; i < begin + count; ++i) EXPECT_TRUE(solved.insert(i).second) << i << " is solved twice";
    return true;
  }
  void restore(int64_t begin, int64_t count) { restored.emplace_back(begin, count); }
  void give_up(int64_t matrix) { given_up.push_back(matrix); }

  using Ranges = std::vector<std::pair<int64_t, int64_t>>;
  int64_t largest_batch = 32'000;
  std::set<int64_t> bad;
  Ranges calls, restored;
  std::set<int64_t> solved;
  std::vector<int64_t> given_up;
};

TEST(SolveStackTest, ManySmallMatricesGoInBatchesThatTheSolverTakes) {
  RefusingSolver solver;
  solve_stack(solver, 40'000, 3);
  EXPECT_EQ(solver.calls, (RefusingSolver::Ranges{{0, kMaxBatch}, {kMaxBatch, kMaxBatch}, {2 * kMaxBatch, 7232}}));
  EXPECT_EQ(solver.solved.size(), 40'000u);
  EXPECT_TRUE(solver.restored.empty());
}

TEST(SolveStackTest, LargeMatricesGoOneByOne) {
  RefusingSolver solver;
  solve_stack(solver, 3, kMaxBatchedSide + 1);
  EXPECT_EQ(solver.calls, (RefusingSolver::Ranges{{0, 1}, {1, 1}, {2, 1}}));
}

TEST(SolveStackTest, OneMatrixThatIsRefusedCostsItsNeighborsNothing) {
  RefusingSolver solver;
  solver.bad = {5};
  solve_stack(solver, 9, 40);
  EXPECT_EQ(solver.restored, (RefusingSolver::Ranges{{0, 9}})) << "the refused batch may have changed them";
  EXPECT_EQ(solver.given_up, std::vector<int64_t>{5});
  EXPECT_EQ(solver.solved.size(), 8u);
}

TEST(SolveStackTest, AMatrixThatIsRefusedAloneIsTriedOnce) {
  for (int64_t side : {40, 2000}) {
    RefusingSolver solver;
    solver.bad = {0};
    solve_stack(solver, 1, side);
    EXPECT_EQ(solver.calls, (RefusingSolver::Ranges{{0, 1}}));
    EXPECT_EQ(solver.given_up, std::vector<int64_t>{0});
  }
}

TEST(SolveStackTest, AnEmptyStackCallsNobody) {
  RefusingSolver solver;
  solve_stack(solver, 0, 10);
  EXPECT_TRUE(solver.calls.empty());
}

}  // namespace
}  // namespace spillway::kfac
