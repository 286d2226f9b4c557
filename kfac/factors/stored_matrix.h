/// Symmetric matrices as they are kept between steps.
#pragma once
#include <ATen/core/Tensor.h>

#include "kfac/plan/options.h"

namespace spillway::kfac {

/// A stack M [count, side, side], symmetric and positive semi-definite: as it is, or as 16-bit correlations
///     R_ij = M_ij / √(M_ii M_jj),   |R_ij| ≤ 1,
/// and a diagonal of the state's own type, so that no scale is too small or too wide for fp16, and traces stay exact.
/// Two handles; it owns no more than they do.
struct StoredMatrix {
  at::Tensor entries;   ///< M, or R
  at::Tensor diagonal;  ///< [count, side]; undefined where entries are M

  /// M: the entries themselves, or a new tensor, exactly symmetric: what store() was given, rounded; store() of it
  /// changes no bit.
  at::Tensor load() const;
  /// Overwrites what is kept; nothing to do for what load() gave of unrounded entries. Workspace: three times M with 16
  /// bits. Of M_ij and M_ji the lower triangle's counts.
  void store(const at::Tensor& matrix) const;
};

/// Half or BFloat16; `wide` for fp32.
at::ScalarType storage_type(FactorDtype storage, at::ScalarType wide);

}  // namespace spillway::kfac
