/// Truncated eigenbases: the leading eigenvectors of factors, followed from update to update.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kfac/inverse/eigenbasis.h"
#include "kfac/inverse/panels.h"

namespace spillway::kfac {

/// The iterations that a subspace needs from random columns. One is enough from the last basis of a running average.
inline constexpr int64_t kFirstSubspaceIterations = 4;

/// Fills Q of truncated bases with random numbers, the same for the same sizes. iterate_subspace() starts from them.
void randomize(const std::vector<Eigenbasis>& bases);

/// Brings a truncated basis up to date with its symmetric factor [count, side, side]. Each of `iterations` ≥ 1 replaces
/// Q by an orthogonal basis of the columns of FQ. Then Q and v become the eigenvectors and eigenvalues of F within the
/// span of Q (Rayleigh–Ritz; Halko, Martinsson & Tropp 2011, §4.5 and §5.3), and τ keeps the trace of F. Works in the
/// factor's type. Directions that are missing from Q grow by v_new/v_rank in each iteration, so that a basis of a slow
/// running average needs one. A factor that is zero leaves Q as it is. Returns false, and changes nothing, when the
/// result is not finite. Cost: count·((2·iterations + 2)·side²·rank + (4·iterations + 4)·side·rank² + 9·rank³) flops,
/// workspace about 4·count·side·rank elements, one host synchronization.
[[nodiscard]] bool iterate_subspace(const at::Tensor& factor, const Eigenbasis& basis, int64_t iterations = 1);
/// Does so with factors of one side, type and rank at once. `factors` has those of all bases, one behind the other. It
/// takes as many operators as for one of them and as few host synchronizations: one, and on a GPU one more each
/// iteration. Returns false for a factor whose result is not finite. Its basis stays as it was. Workspace: that of all.
[[nodiscard]] std::vector<bool> iterate_subspaces(const at::Tensor& factors, const std::vector<Eigenbasis>& bases,
                                                  int64_t iterations = 1);

/// Returns an orthogonal basis of the columns of each matrix of `y` [count, side, rank], of y's type, by Cholesky's
/// decomposition of their Gram matrix in float64, twice (Yamamoto et al. 2015). It is made of products, which a GPU
/// computes for many matrices at once, unlike Householder's reflections. Columns get length one before, so that their
/// scales do not matter. The result is orthogonal to 1e-10 and y's rounding, or NaN for a matrix with a column of zeros
/// or columns that are nearly dependent. No host synchronization. Cost: count·(6·side·rank² + 2·rank³) flops in
/// float64.
at::Tensor cholesky_qr(const at::Tensor& y);

/// One iteration of iterate_subspace() that is made in pieces, by n panels of the basis's columns: n of the product FQ,
/// one of its orthogonal basis q, n of H = qᵀFq, one of the decomposition of H, and n of the product that makes the new
/// Q. The first two products of a panel take 2·count·side²·panel flops a piece. The result depends on the factor, the
/// last basis and the panels alone. Its last bits may differ from iterate_subspace()'s, because products of fewer
/// columns may be summed in another order. State: the factor until H is made, and 2·count·side·rank elements.
class SubspaceIteration {
 public:
  /// Takes `factor` [count, side, side] over, of this object alone, for bases of `rank` columns.
  SubspaceIteration(at::Tensor factor, int64_t rank, int64_t most_columns);

  /// Returns the number of pieces for bases of `rank` columns.
  static int64_t pieces(int64_t rank, int64_t most_columns) { return 3 * Panels{rank, most_columns}.count() + 2; }
  /// Does the next piece. `basis` is the last one, the same for every piece.
  void run_next(const Eigenbasis& basis);
  /// Overwrites the basis after the last piece. Returns false, and changes nothing, when the result is not finite.
  [[nodiscard]] bool keep(const Eigenbasis& basis) const;

 private:
  at::Tensor factor_;
  at::Tensor trace_;             // [count, 1]
  at::Tensor q_;                 // [count, side, rank]: FQ, then its orthogonal basis
  at::Tensor h_;                 // [count, rank, rank]: H, then its eigenvectors
  at::Tensor values_, vectors_;  // of F
  Panels panels_;
  int64_t done_ = 0;
};

/// Returns v = diag(QᵀFQ), clamped at 0, [count, side], and with its tail [count, rank + 1] for truncated vectors.
at::Tensor rayleigh_quotients(const at::Tensor& factor, const at::Tensor& vectors);

}  // namespace spillway::kfac
