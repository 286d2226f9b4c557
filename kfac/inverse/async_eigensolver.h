/// Eigendecompositions on a thread of their own, beside whatever the owner computes. LibTorch-free.
#pragma once
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace spillway::kfac {

/// A stack of symmetric matrices, [groups, side, side] of float (4 bytes an element) or double (8).
struct MatrixStack {
  int64_t groups = 0;
  int64_t side = 0;
  int64_t element_bytes = 4;
};

/// Decomposes stacks in place, in plain memory of its own, that no allocator of LibTorch's counts and no pager moves.
/// The thread runs no operator: LibTorch's allocator charges every thread's tensors to the budget, so one that did
/// could run out of it, or evict, when timing chooses. It uses LibTorch's LAPACK (syevd) on one core, so that results
/// are the same bits whatever the load. Between start() and wait() the memory is the thread's. Thread: the owner's.
class BackgroundSolver {
 public:
  /// LAPACK counts its workspace, 1 + 6 side + 2 side² elements, in an int.
  static constexpr int64_t kLargestSide = 32766;

  /// `before_each` is called on the solver's thread before each matrix, for tests. Throws BadRequest for sizes that are
  /// not positive and sides above kLargestSide, std::runtime_error when LibTorch's LAPACK is not to be found.
  explicit BackgroundSolver(const std::vector<MatrixStack>& stacks, std::function<void()> before_each = nullptr);
  /// Stops after the matrix that is being decomposed.
  ~BackgroundSolver();
  BackgroundSolver(const BackgroundSolver&) = delete;
  BackgroundSolver& operator=(const BackgroundSolver&) = delete;

  /// Stack `i`: before start() the symmetric matrices, after wait() their eigenvectors as rows.
  void* matrices(size_t i) { return stacks_[i].matrices.get(); }
  /// [groups, side], ascending, after wait(); all of a matrix are NaN when it did not converge.
  void* values(size_t i) { return stacks_[i].values.get(); }

  /// Starts on all stacks, in order. Throws std::logic_error when the last start() was not waited for.
  void start();
  /// Blocks until the last start() has finished; rethrows what ended it early. At once when nothing runs.
  void wait();

  /// Matrices and values of all stacks, and LAPACK's workspace for the largest: 2·side² elements and 17·side about.
  int64_t bytes() const { return bytes_; }

 private:
  /// MKL gives the same bits again for the same alignment only.
  struct alignas(64) CacheLine {
    std::byte bytes[64];
  };
  struct Stack {
    MatrixStack shape;
    std::unique_ptr<CacheLine[]> matrices;
    std::unique_ptr<CacheLine[]> values;
  };
  struct Lapack;

  void solve_all(const std::stop_token& stop);
  void solve(Stack& stack, int64_t group);

  std::vector<Stack> stacks_;
  std::function<void()> before_each_;
  std::unique_ptr<Lapack> lapack_;
  int64_t bytes_ = 0;
  std::exception_ptr error_;
  std::jthread thread_;  ///< last: ends before what it uses
};

}  // namespace spillway::kfac
