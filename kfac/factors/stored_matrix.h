/// Symmetric matrices as they are kept between steps.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "kfac/plan/options.h"

namespace spillway::kfac {

/// A stack M [count, side, side], symmetric and positive semi-definite. It is kept as it is, or as 16-bit correlations
///     R_ij = M_ij / √(M_ii M_jj),   |R_ij| ≤ 1,
/// and a diagonal of the state's own type. Because of the diagonal, no scale is too small or too wide for fp16, and
/// traces stay exact. The struct consists of two tensor handles and owns only the memory behind them.
struct StoredMatrix {
  at::Tensor entries;   ///< M, or R
  at::Tensor diagonal;  ///< [count, side]; undefined where entries are M

  /// Returns M: the entries themselves, or a new tensor. The new tensor is exactly symmetric: the matrix that store()
  /// was given, rounded. Calling store() with it changes no bit.
  at::Tensor load() const;
  /// Overwrites the kept matrix. Does nothing for the result of load() when entries are unrounded. Workspace: three
  /// times M with 16 bits. Of M_ij and M_ji, the entry in the lower triangle counts.
  void store(const at::Tensor& matrix) const;
};

/// A stack M as StoredMatrix has it, of which one triangle is kept: half the bytes. It is for running averages.
/// Eigenvectors and inverses are kept whole, because every step reads them, and load() copies.
struct StoredTriangle {
  at::Tensor entries;   ///< a triangle of M, or of R, in the layout of pack_triangles(): FactorShape::triangle_sizes()
  at::Tensor diagonal;  ///< [count, side]; undefined where entries are of M

  /// Returns M, a new tensor that is exactly symmetric. Cost: one pass.
  at::Tensor load() const;
  /// Overwrites the kept matrix. With 16 bits the lower triangle of `matrix` counts, as in StoredMatrix::store(); else
  /// the entries that pack_triangles() copies.
  void store(const at::Tensor& matrix) const;
};

/// Returns the traces [Σ count] of the matrices of stacks of one side and type, without forming them.
at::Tensor traces(const std::vector<StoredTriangle>& stacks);

/// Returns stacks of one side and type as one stack, one behind the other; a single one itself. Cost: a copy.
StoredTriangle joined(const std::vector<StoredTriangle>& stacks);

/// Returns Half or BFloat16; `wide` for fp32.
at::ScalarType storage_type(FactorDtype storage, at::ScalarType wide);

}  // namespace spillway::kfac
