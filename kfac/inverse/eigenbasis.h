/// Eigendecompositions of factors.
#pragma once
#include <ATen/core/Tensor.h>

#include <tuple>
#include <vector>

namespace spillway::kfac {

/// F = Q diag(v) Qᵀ of every matrix: `vectors` [count, side, side] with eigenvectors as columns, `values` [count,
/// side].
struct Eigenbasis {
  at::Tensor vectors;
  at::Tensor values;

  /// Q = I, v = 0: the basis of a factor that nobody has seen. Born in Category::eigenbases.
  static Eigenbasis identity(int64_t count, int64_t side, const at::TensorOptions& like);
};

/// Values, ascending, and vectors of the symmetric `matrices` [count, side, side], whose lower triangles count. Values
/// of a matrix that was not decomposed are NaN; its neighbours are none the worse. On the CPU LAPACK, one after the
/// other, each with the bits that it would have alone. On a card, where libspillway_cuda is loaded, cuSOLVER: several
/// of a side up to 512 in one batched call, others one by one, no host synchronisation; else what LibTorch takes. Cost:
/// 9·count·side³ flops about.
std::tuple<at::Tensor, at::Tensor> eigh(const at::Tensor& matrices);

/// Overwrites each basis with the decomposition of its symmetric factor [count, side, side]; all are of one side and of
/// one type and are decomposed together. Eigenvalues are clamped at 0. Solved in the factors' type and checked (Q
/// orthogonal, FQ = QΛ, to rounding: at_rounding_level()), a factor that fails by itself once more in float64. False
/// for one that fails twice, whose basis is as it was. On the CPU no factor's bits depend on its neighbours. Workspace:
/// four times the factors; one host synchronisation.
[[nodiscard]] std::vector<bool> decompose(const std::vector<at::Tensor>& factors, const std::vector<Eigenbasis>& bases);
/// The same of one.
[[nodiscard]] bool decompose(const at::Tensor& factor, const Eigenbasis& basis);

}  // namespace spillway::kfac
