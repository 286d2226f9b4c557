/// A preconditioned layer as numbers: its factors, the bytes they take and their costs. LibTorch-free, so that
/// placement and planning need no model.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kfac/plan/options.h"

namespace spillway::kfac {

/// The kind of a layer.
enum class LayerKind : uint8_t { linear, conv1d, conv2d, conv3d };
/// Returns the name: `conv3d`.
std::string_view name(LayerKind kind);

/// The role of a matrix in a layer's Kronecker product. Order within a layer: A, G; or C, K, G.
enum class FactorRole : uint8_t {
  input,     ///< A: inputs (patches for a convolution), with a last column of ones for the bias
  channels,  ///< C = tr_K(A): input channels
  offsets,   ///< K = tr_C(A): kernel offsets; divided by its trace when it is decomposed
  output,    ///< G: gradients of the outputs
};

/// One factor: `count` square matrices held as one [count, side, side] tensor, one matrix for each block of each group.
struct FactorShape {
  FactorRole role;
  int64_t side = 0;
  int64_t count = 1;
  int64_t rank = side;  ///< eigenvectors that are kept of each matrix
  int64_t elements() const { return count * side * side; }
  bool is_truncated() const { return rank < side; }
  /// Returns the sizes of the running average, which is kept as a triangle (kfac/factors/packed_triangles.h).
  std::vector<int64_t> triangle_sizes() const { return {count, side / 2 * 2 + 1, side - side / 2}; }
  /// Returns the eigenvalues that are kept of each matrix. Those of a truncated basis end with its tail.
  int64_t values() const { return is_truncated() ? rank + 1 : side; }
  bool operator==(const FactorShape&) const = default;
};

/// The most factors of a layer: C, K and G.
inline constexpr int64_t kMaxFactors = 3;

/// The form of the inverse that gradient workers hold of a layer.
struct InverseForm {
  Method method = Method::eigen;
  bool precompute_outer = false;
  EigenRank rank = EigenRank::full();
  bool operator==(const InverseForm&) const = default;
};

/// The sizes of a whole layer; `kernel` is empty for Linear.
struct LayerShape {
  std::string name = {};
  LayerKind kind = LayerKind::linear;
  int64_t out = 0;
  int64_t in = 0;
  std::vector<int64_t> kernel = {};
  int64_t groups = 1;
  bool bias = true;
  bool separable = false;
  /// Equal blocks of a group's input channels and of its outputs (features for Linear). The blocks' curvatures are
  /// taken as independent. Separable layers have one of each.
  int64_t input_blocks = 1, output_blocks = 1;
  InverseForm inverse = {};
  FactorDtype storage = FactorDtype::fp32;  ///< KfacOptions::storage
  /// Layers that stand side by side, as groups do: `out`, `in` and `groups` are of all of them together. The damping is
  /// each one's own.
  int64_t layers = 1;

  bool operator==(const LayerShape&) const = default;
  int64_t kernel_volume() const;
  /// Returns the columns of a group's gradient, which would be A's side if A were held in full. That is
  /// in/groups · kernel volume, and one for the bias.
  int64_t input_side() const;
  /// True when the bias has no column in A and is preconditioned by G alone.
  bool bias_apart() const { return bias && (separable || input_blocks > 1); }
  /// Returns the factors that the layer holds, in the order in which they are kept, reduced and decomposed.
  std::vector<FactorShape> factors() const;
  /// Returns the elements of the weight gradient and the bias gradient. A broadcast of the preconditioned gradient
  /// carries them.
  int64_t gradient_elements() const;
};

/// Returns `count` layers of one shape side by side. Tensors of the result are those of the layers, one behind the
/// other in their first dimension: gradients, factors and inverses.
LayerShape side_by_side(LayerShape layer, int64_t count);

/// The sums that bound a step, which travel with a layer's gradient: ⟨V, ∇⟩, ‖V‖², ‖W‖².
inline constexpr int64_t kStepSums = 3;

/// Returns Σ count·side² over the layer's factors.
int64_t factor_elements(const LayerShape& layer);
/// One tensor of a layer's state. The owner of factor `factor` sends the tensors of an inverse to the gradient workers.
struct HeldTensor {
  std::string name;
  std::vector<int64_t> sizes;
  size_t factor = 0;
  bool in_storage = false;  ///< true when its type is LayerShape::storage's, not the state's own (float32, or float64)
  int64_t elements() const;
};
/// Returns the running averages: `factorF`, of FactorShape::triangle_sizes(), and with 16-bit storage
/// `factor_diagonalF` [count, side].
std::vector<HeldTensor> factor_tensors(const LayerShape& layer);
/// Returns all tensors that a gradient worker holds of the layer, in the order in which they are sent. For factor f of
/// [count, side, side]:
///   eigen:       `vectorsF` [count, side, rank], `valuesF` [count, FactorShape::values()]; with precompute_outer the
///                values are replaced by one `reciprocal` of denominators()'s sizes, sent by G's owner: with full bases
///                [groups, out/groups, columns of the gradient]
///   plain, pi:   `inverseF` [count, side, side], and with 16-bit storage `inverse_diagonalF` [count, side]
std::vector<HeldTensor> inverse_tensors(const LayerShape& layer);
/// Returns the scales (kfac/inverse/scales.h) that a gradient worker holds of the layer from step to step beside its
/// inverse: `kept`, `by_g`, `by_a` and `of_all` of the weight, as far as they are there, and `bias_kept` and
/// `bias_by_a` of a bias that is apart. They are held where they are few, at most a quarter of the gradient's elements
/// or 2¹⁶, and where they are more than views of what the inverse holds. Else there are none.
std::vector<HeldTensor> scale_tensors(const LayerShape& layer);
/// Returns the bytes of such tensors of one layer. One element of the state's own type has `element_bytes`; `storage`
/// is the layer's.
int64_t bytes_of(const std::vector<HeldTensor>& tensors, FactorDtype storage, int64_t element_bytes);
/// Returns the elements of inverse_tensors(): Σ count·(side·rank + values()) with eigen.
int64_t eigenbasis_elements(const LayerShape& layer);
/// Returns the approximate operations of renewing a factor's inverse. A full symmetric eigensolver with its
/// eigenvectors takes 9·count·side³. The subspace iteration of a truncated basis takes
/// count·(4·side²·rank + 8·side·rank² + 9·rank³), and an inverse by Cholesky count·side³.
double decomposition_flops(const LayerShape& layer, const FactorShape& factor);
/// Returns the operations of the products of one gradient with the factors' bases, into them and back. That is 4·Σ over
/// factors of gradient elements · rank; half of that with inverses.
double precondition_flops(const LayerShape& layer);
/// Returns the cost of decomposing one factor, in units that are good for comparisons only: count·side³, and for a
/// truncated basis as much less as its operations are fewer than a full eigensolver's.
double decomposition_cost(const FactorShape& factor);

/// True when `layer` is held as C ⊗ K under `form`. It must be a convolution with more than one kernel offset and more
/// than one channel a group. Under `automatic` its input side must also be above `max_factor_dim`.
bool is_separable(const LayerShape& layer, ConvFactors form, int64_t max_factor_dim);
/// Returns `layer` with the fewest equal blocks that keep A's and G's sides to `max_side`. Blocks divide the channels
/// (the features of Linear), so a prime number of channels leaves blocks of one. A block holds all offsets of its
/// channels. It holds the bias's column only where A is one block.
LayerShape in_blocks(LayerShape layer, int64_t max_side);

}  // namespace spillway::kfac
