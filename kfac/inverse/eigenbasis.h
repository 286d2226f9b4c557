/// Eigendecompositions of factors.
#pragma once
#include <ATen/core/Tensor.h>

#include <tuple>
#include <vector>

namespace spillway::kfac {

/// The decomposition F = Q diag(v) Qᵀ of every matrix: `vectors` [count, side, side] with eigenvectors as columns,
/// `values` [count, side]. A truncated basis has `rank` leading eigenvectors, [count, side, rank], and their values
/// with the tail τ as the last one, [count, rank + 1]:
///     F ≈ Q diag(v) Qᵀ + τ (I − Q Qᵀ),   τ = (tr F − Σv) / (side − rank),
/// so that τ is the mean of the eigenvalues that are left out.
struct Eigenbasis {
  at::Tensor vectors;
  at::Tensor values;

  /// Returns Q = I, v = 0: the basis of a factor that was never seen. Allocates it in Category::eigenbases.
  static Eigenbasis identity(int64_t count, int64_t side, const at::TensorOptions& like);
};

/// Returns true for each basis all of whose matrices are marked. `marks`, bool [Σ count] on the host, has those of all
/// bases, one behind the other.
std::vector<bool> all_of_each(const std::vector<Eigenbasis>& bases, const at::Tensor& marks);
/// Overwrites the chosen bases with their parts of `values` and `vectors`, which have those of all bases, one behind
/// the other. One operator for all.
void overwrite(const std::vector<Eigenbasis>& bases, const std::vector<bool>& chosen, const at::Tensor& values,
               const at::Tensor& vectors);

/// Returns the values, ascending, and the vectors of the symmetric `matrices` [count, side, side], whose lower
/// triangles count. Values of a matrix that was not decomposed are NaN; the other matrices are not affected. On the CPU
/// it uses LAPACK, one matrix after the other, each with the bits that it would have alone. On a GPU, where
/// libspillway_cuda is loaded, it uses cuSOLVER without host synchronization. Several matrices of a side up to 512 go
/// in one batched call, others one by one. Otherwise it uses the solver that LibTorch chooses. Cost: about
/// 9·count·side³ flops.
std::tuple<at::Tensor, at::Tensor> eigh(const at::Tensor& matrices);

/// Overwrites each basis with the decomposition of its symmetric factor. `factors` [Σ count, side, side] has those of
/// all bases, one behind the other, and they are decomposed together. Eigenvalues are clamped at 0. The factors are
/// solved in their own type and checked (Q orthogonal, FQ = QΛ, to rounding: at_rounding_level()). A factor that fails
/// is solved once more, by itself in float64. Returns false for a factor that fails twice, whose basis stays as it was.
/// On the CPU no factor's bits depend on the other factors. Workspace: four times the factors. One host
/// synchronization, and more where a factor is solved again.
[[nodiscard]] std::vector<bool> decompose(const at::Tensor& factors, const std::vector<Eigenbasis>& bases);
/// Overwrites one basis with the decomposition of its factor; returns false when the factor fails twice.
[[nodiscard]] bool decompose(const at::Tensor& factor, const Eigenbasis& basis);

}  // namespace spillway::kfac
