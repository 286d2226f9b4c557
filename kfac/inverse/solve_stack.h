/// The order in which an eigensolver of a GPU takes the matrices of a stack. LibTorch-free.
#pragma once
#include <algorithm>
#include <cstdint>

namespace spillway::kfac {

/// The side above which one matrix fills a GPU, so that batches gain nothing.
inline constexpr int64_t kMaxBatchedSide = 512;
/// The matrices of one batch. cuSOLVER's batched solver refuses about 32 thousand.
inline constexpr int64_t kMaxBatch = 16384;

/// Solves `count` matrices of `side`: small ones in batches, large ones one by one. The matrices of a batch that the
/// solver refuses are solved one by one, and one that it refuses alone is given up. A Solver has
/// `bool solve(int64_t begin, int64_t count)`, false when it refuses, `void restore(int64_t begin, int64_t count)`,
/// which undoes what a refused call did to the matrices, and `void give_up(int64_t matrix)`.
template <class Solver>
void solve_stack(Solver&& solver, int64_t count, int64_t side) {
  const int64_t most = side <= kMaxBatchedSide ? kMaxBatch : 1;
  for (int64_t begin = 0; begin < count; begin += most) {
    const int64_t batch = std::min(most, count - begin);
    if (solver.solve(begin, batch)) continue;
    if (batch > 1) solver.restore(begin, batch);
    for (int64_t i = begin; i < begin + batch; ++i)
      if (batch == 1 || !solver.solve(i, 1)) solver.give_up(i);
  }
}

}  // namespace spillway::kfac
