/// Symmetric matrices as triangles, the form in which they travel between ranks.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

namespace spillway::kfac {

/// Returns Σ groups·n(n+1)/2 of matrices [groups, n, n].
int64_t packed_elements(at::TensorList matrices);

/// Writes one triangle of each symmetric matrix [groups, n, n], one behind the other, to `packed`
/// [packed_elements(matrices)] of any floating type; rounds once. With h = ⌊n/2⌋, a matrix has the blocks
/// F = [F11 F12; F12ᵀ F22], F11 h×h. It becomes F12 above a rectangle. The rectangle holds the upper triangle of F22
/// and, one row further down, the lower triangle of F11. This layout takes few operators and no index tensors. Cost:
/// one pass; workspace: half a matrix.
void pack_triangles(at::TensorList matrices, const at::Tensor& packed);

/// Returns the diagonals of matrices in that layout, viewed as [groups, 2h + 1, n − h]: F11's [groups, h] and F22's
/// [groups, n − h], views.
std::vector<at::Tensor> packed_diagonals(const at::Tensor& packed);

/// Reverses pack_triangles(); the matrices become exactly symmetric.
void unpack_triangles(const at::Tensor& packed, at::TensorList matrices);

}  // namespace spillway::kfac
