/// The inverse of a layer that a gradient worker holds, and the functions that make it from the layer's factors.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "kfac/factors/stored_matrix.h"
#include "kfac/inverse/eigenbasis.h"
#include "kfac/plan/layer_shape.h"

namespace spillway::kfac {

/// The damping γ: absolute where given, else relative · curvature, or relative · (tr A/dim A) · (tr G/dim G) where no
/// curvature is given.
struct Damping {
  double relative = 0.3;
  std::optional<double> absolute = std::nullopt;
  /// DampingScope::network's of the layer, 0-dim, or of each layer that stands side by side, [layers]; not with an
  /// absolute damping.
  at::Tensor curvature = {};
  at::Tensor gamma = {};  ///< γ itself, of the same sizes, where it is known, of a layer whose bias is not apart
};

/// Returns γ of layers whose mean curvatures Π (tr F/dim F) are `mean_curvatures` [any], and one for a layer without
/// curvature. `damping.curvature`, where it is given, is of the same sizes.
at::Tensor gamma_of(const at::Tensor& mean_curvatures, const Damping& damping);

/// Returns tr/dim [any] of block-diagonal factors of one shape with blocks of `traces` [any, count]. For K it is that
/// of K divided by its trace.
at::Tensor mean_eigenvalue(const FactorShape& shape, const at::Tensor& traces);

/// The tensors of inverse_tensors(shape), ordinary tensors of Category::eigenbases. Empty on a rank that is no gradient
/// worker.
struct LayerInverse {
  std::vector<at::Tensor> held;  ///< in the order of inverse_tensors()
  /// Eigenvalues [count, FactorShape::values()] of each factor that the rank decomposed. They exist with
  /// precompute_outer only, and only between the decomposition and form_reciprocal().
  std::vector<at::Tensor> fresh_values = {};

  /// Returns the inverse of a layer that was never seen: V = ∇.
  static LayerInverse identity(const LayerShape& shape, const at::TensorOptions& like);

  /// Returns Q of factor `f` [count, side, rank], or its damped inverse [count, side, side]: of the state's own type.
  /// With 16-bit storage it is a new tensor.
  at::Tensor matrix(const LayerShape& shape, size_t f) const;
  /// Returns the eigenvalues of every factor, as they are kept; with eigenbases and without precompute_outer.
  std::vector<at::Tensor> values(const LayerShape& shape) const;
  /// Returns Q and v of factor `f` as they are kept, for its decomposition to overwrite. With precompute_outer it
  /// allocates v, zero.
  Eigenbasis basis(const LayerShape& shape, size_t f);
  /// Returns the damped inverse of factor `f` as it is kept.
  StoredMatrix stored(const LayerShape& shape, size_t f) const;
};

/// Returns the mean curvature of a layer whose bias is not apart, 0-dim: the product of the mean eigenvalues of its
/// factors, the K of a separable layer divided by its trace. `values` as in denominators().
at::Tensor mean_curvature(const LayerShape& shape, const std::vector<at::Tensor>& values);

/// Returns v_G v_Aᵀ + γ for every pair of eigenvalues, [groups, values of G, values of A]: with full bases the sizes of
/// the gradient matrix, [groups, out/groups, columns]. The gradient is divided by it between the eigenbases; the values
/// of blocks stand one behind the other, each block's with its tail. For separable layers, columns are (offset,
/// channel) pairs with v_A = v_C ⊗ v_K/Σv_K, offsets first. Where the bias is apart, one more column is v_G + γ_b, γ_b
/// = γ / ((tr A/dim A) · (tr K/dim K)) of a relative γ, as if the other factors were their mean eigenvalues. The result
/// is one where the layer has no curvature (a factor is zero). `values` are [count, FactorShape::values()] in the order
/// of LayerShape::factors(). No host synchronization.
at::Tensor denominators(const LayerShape& shape, const std::vector<at::Tensor>& values, const Damping& damping);

/// Sets v for a factor whose decomposition failed, so that its last Q stays. With precompute_outer, which has kept no
/// v, v becomes diag(QᵀFQ) of that Q and the factor. Otherwise nothing happens, and the last v stays too.
void rescale_fresh_values(const at::Tensor& factor, LayerInverse& inverse, const LayerShape& shape, size_t f);

/// Overwrites the reciprocal with 1/denominators(fresh_values), then drops fresh_values. The rank must hold all of
/// them.
void form_reciprocal(LayerInverse& inverse, const LayerShape& shape, const Damping& damping);

/// Overwrites the inverse of factor `f` with (F + d I)⁻¹, K divided by its trace first. With `plain`, d = γ. With `pi`,
/// each factor is damped in proportion to its mean eigenvalue m, so that the product of the dampings is γ:
///   d_F = m_F (γ / Π m)^(1/n),   n factors.
/// For A and G that is π√γ and √γ/π with π² = m_A/m_G (Martens & Grosse 2015, §6.3). For C ⊗ K ⊗ G the cube root takes
/// the square root's place. A bias that is apart uses the same inverse of G. The factors themselves are not changed. A
/// layer without curvature gets the identity. Where Cholesky fails or is not finite the last inverse stays, matrix by
/// matrix, and `failed` (0-dim int64) counts one. Decides on the device. Cost: about count·side³ flops, workspace
/// 3·count·side² elements.
void invert_factor(const LayerInverse& inverse, const LayerShape& shape, const std::vector<at::Tensor>& factors,
                   size_t f, const Damping& damping, const at::Tensor& failed);

/// Returns the matrix that invert_factor() inverts, (F + d I) [count, side, side]: a new tensor, zero off the diagonal
/// for a layer without curvature.
at::Tensor damped_factor(const LayerShape& shape, const std::vector<at::Tensor>& factors, size_t f,
                         const Damping& damping);

/// Overwrites the inverse of factor `f` with those matrices of `fresh` [count, side, side] that are `solved` [count].
/// The others stay as they were, and `failed` counts one. Decides on the device.
void keep_solved(const LayerInverse& inverse, const LayerShape& shape, size_t f, const at::Tensor& fresh,
                 const at::Tensor& solved, const at::Tensor& failed);

}  // namespace spillway::kfac
