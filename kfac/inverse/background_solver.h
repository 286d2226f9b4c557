/// Eigendecompositions on a separate thread, beside the calling thread's computations. LibTorch-free.
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

/// A solver that decomposes stacks in place, in its own plain memory. No allocator of LibTorch counts this memory and
/// no pager moves it. The solver's thread runs no operator, because LibTorch's allocator charges every thread's tensors
/// to the budget. With operators, the thread could exceed the budget or evict, at moments that depend on timing. It
/// uses LibTorch's LAPACK (syevd) on one core, so that results are the same bits whatever the load. Between start() and
/// wait() only the solver's thread may use the memory. Call the functions only from the thread that owns the solver.
class BackgroundSolver {
 public:
  /// The largest side, because LAPACK counts its workspace, 1 + 6 side + 2 side² elements, in an int.
  static constexpr int64_t kMaxSide = 32766;

  /// Allocates memory for `stacks`. `before_each` is called on the solver's thread before each matrix, for tests.
  /// Throws BadRequest for sizes that are not positive and sides above kMaxSide. Throws std::runtime_error when
  /// LibTorch's LAPACK is not found.
  explicit BackgroundSolver(const std::vector<MatrixStack>& stacks, std::function<void()> before_each = nullptr);
  /// Stops after the matrix that is being decomposed.
  ~BackgroundSolver();
  BackgroundSolver(const BackgroundSolver&) = delete;
  BackgroundSolver& operator=(const BackgroundSolver&) = delete;

  /// Returns stack `i`: the symmetric matrices before start(), their eigenvectors as rows after wait().
  void* matrices(size_t i) { return stacks_[i].matrices.get(); }
  /// Returns the values of stack `i` after wait(): [groups, side], ascending. All values of a matrix are NaN when it
  /// did not converge.
  void* values(size_t i) { return stacks_[i].values.get(); }

  /// Starts to decompose all stacks, in order. Throws std::logic_error when the last start() was not waited for.
  void start();
  /// Blocks until the last start() has finished. Rethrows the error that ended it early. Returns at once when nothing
  /// runs.
  void wait();

  /// Returns the bytes that the solver allocated: the matrices and values of all stacks, and LAPACK's workspace for the
  /// largest matrix. The workspace is 1 + 6·side + 2·side² elements and 3 + 5·side ints. All but the ints are rounded
  /// up to whole cache lines of 64 bytes.
  int64_t bytes() const { return bytes_; }

 private:
  /// A unit of aligned memory, because MKL repeats the same bits for the same alignment only.
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
  std::jthread thread_;  ///< last, because it must end before the members that it uses
};

}  // namespace spillway::kfac
