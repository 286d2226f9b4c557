/// Inverses of positive definite matrices, made in pieces by panels of columns.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kfac/inverse/panels.h"

namespace spillway::kfac {

/// The inverse of every matrix M of a stack [count, side, side] that is made in place and in pieces. With n panels,
///     M = L Lᵀ,   X = L⁻¹,   M⁻¹ = Xᵀ X,
/// the pieces 0 to n−1 make the panels of L, the next n those of X, and the last n those of M⁻¹. Piece k of each kind
/// makes the columns of panel k from its diagonal down:
///     L[k:, k] L[k, k]ᵀ = M[k:, k] − L[k:, :k] L[k, :k]ᵀ
///     L[k:, k:] X[k:, k] = I[:, k]
///     M⁻¹[i, k] = X[i:, i]ᵀ X[i:, k]   for i ≥ k.
/// Later pieces do not read what it overwrites. The result depends on the matrix and the panels alone, because a piece
/// reads nothing but the tensor that those before it have written. Matrices that are not positive definite go on as
/// garbage, without an error or a host synchronization.
///
/// Cost: count·side³ flops in all, a third of them for each kind, and at most count·panel·side² for a piece. Workspace:
/// up to count·side² elements. State: count·side² elements. Source: Golub & Van Loan, Matrix Computations, §4.2 (block
/// Cholesky, in the form of products with the panels before).
class PanelInverse {
 public:
  /// Takes `matrices` over: symmetric, contiguous and of this object alone.
  PanelInverse(at::Tensor matrices, int64_t most_columns);

  /// Returns the number of pieces for matrices of `side`.
  static int64_t pieces(int64_t side, int64_t most_columns) { return 3 * Panels{side, most_columns}.count(); }
  /// Does the next piece.
  void run_next();

  /// Returns the inverses after the last piece, exactly symmetric.
  const at::Tensor& inverses() const { return matrices_; }
  /// Returns, after the last piece, true for each matrix that is positive definite and has a finite inverse, [count].
  at::Tensor solved() const;

 private:
  /// Returns panel `k` from its diagonal down, [count, rows, columns], a view.
  at::Tensor below_diagonal(int64_t k) const;
  void factor(int64_t k);
  void invert_triangle(int64_t k);
  void multiply(int64_t k);

  at::Tensor matrices_;
  at::Tensor m_;         // a view of them that has its columns one behind the other, as LAPACK wants them
  at::Tensor factored_;  // [count], Bool
  Panels panels_;
  int64_t done_ = 0;
};

}  // namespace spillway::kfac
