/// Truncated eigenbases: the leading eigenvectors of factors, followed from update to update.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kfac/inverse/eigenbasis.h"

namespace spillway::kfac {

/// The iterations that a subspace needs from random columns. One is enough from the last basis of a running average.
inline constexpr int64_t kFirstSubspaceIterations = 4;

/// Fills Q of a truncated basis with random numbers, the same for the same sizes. iterate_subspace() starts from them.
void randomize(const Eigenbasis& basis);

/// Brings a truncated basis up to date with its symmetric factor [count, side, side]. Each of `iterations` ≥ 1 replaces
/// Q by an orthogonal basis of the columns of FQ. Then Q and v become the eigenvectors and eigenvalues of F within the
/// span of Q (Rayleigh–Ritz; Halko, Martinsson & Tropp 2011, §4.5 and §5.3), and τ keeps the trace of F. Works in the
/// factor's type. Directions that are missing from Q grow by v_new/v_rank in each iteration, so that a basis of a slow
/// running average needs one. A factor that is zero leaves Q as it is. Returns false, and changes nothing, when the
/// result is not finite. Cost: count·((2·iterations + 2)·side²·rank + (4·iterations + 4)·side·rank² + 9·rank³) flops,
/// workspace about 4·count·side·rank elements, one host synchronization.
[[nodiscard]] bool iterate_subspace(const at::Tensor& factor, const Eigenbasis& basis, int64_t iterations = 1);

/// Returns v = diag(QᵀFQ), clamped at 0, [count, side], and with its tail [count, rank + 1] for truncated vectors.
at::Tensor rayleigh_quotients(const at::Tensor& factor, const at::Tensor& vectors);

}  // namespace spillway::kfac
