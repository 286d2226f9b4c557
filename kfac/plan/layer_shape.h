/// A preconditioned layer as numbers: what its factors are, how many bytes they take and what they cost. LibTorch-free,
/// so that placement and planning need no model.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kfac/plan/options.h"

namespace spillway::kfac {

enum class LayerKind : uint8_t { linear, conv1d, conv2d, conv3d };
std::string_view name(LayerKind kind);

/// Which matrix of a layer's Kronecker product. Order within a layer: A, G; or C, K, G.
enum class FactorRole : uint8_t {
  input,     ///< A: inputs (patches for a convolution), with a last column of ones for the bias
  channels,  ///< C = tr_K(A): input channels
  offsets,   ///< K = tr_C(A): kernel offsets; divided by its trace when it is decomposed
  output,    ///< G: gradients of the outputs
};

/// One factor, `count` square matrices held as one [count, side, side] tensor: one for each block of each group.
struct FactorShape {
  FactorRole role;
  int64_t side = 0;
  int64_t count = 1;
  int64_t elements() const { return count * side * side; }
};

/// What gradient workers hold of a layer.
struct InverseForm {
  Method method = Method::eigen;
  bool precompute_outer = false;
};

/// Sizes are those of the whole layer; `kernel` is empty for Linear.
struct LayerShape {
  std::string name = {};
  LayerKind kind = LayerKind::linear;
  int64_t out = 0;
  int64_t in = 0;
  std::vector<int64_t> kernel = {};
  int64_t groups = 1;
  bool bias = true;
  bool separable = false;
  /// Equal blocks of a group's input channels and of its outputs (features for Linear), whose curvature is taken as
  /// independent. Separable layers have one of each.
  int64_t input_blocks = 1, output_blocks = 1;
  InverseForm inverse = {};
  FactorDtype storage = FactorDtype::fp32;  ///< KfacOptions::storage

  int64_t kernel_volume() const;
  /// Columns of a group's gradient, A's side if it were held in full: in/groups · kernel volume, and one for the bias.
  int64_t input_side() const;
  /// Whether the bias has no column in A and is preconditioned by G alone.
  bool bias_apart() const { return bias && (separable || input_blocks > 1); }
  /// The factors it holds, in the order in which they are kept, reduced and decomposed.
  std::vector<FactorShape> factors() const;
  /// Elements of the weight gradient and the bias gradient: what a broadcast of the preconditioned gradient carries.
  int64_t gradient_elements() const;
};

/// Σ count·side² over the layer's factors.
int64_t factor_elements(const LayerShape& layer);
/// One tensor of a layer's state. Of an inverse, it is sent to the gradient workers by the owner of factor `factor`.
struct HeldTensor {
  std::string name;
  std::vector<int64_t> sizes;
  size_t factor = 0;
  bool in_storage = false;  ///< of LayerShape::storage's type, not of the state's own (float32, or float64)
  int64_t elements() const;
};
/// The running averages: `factorF` [count, side, side], and with 16-bit storage `factor_diagonalF` [count, side].
std::vector<HeldTensor> factor_tensors(const LayerShape& layer);
/// All that a gradient worker holds of the layer, in the order in which it is sent. For factor f of [count, side,
/// side]:
///   eigen:       `vectorsF` [count, side, side], `valuesF` [count, side]; with precompute_outer the values give way
///                to one `reciprocal` [groups, out/groups, columns of the gradient], sent by G's owner
///   plain, pi:   `inverseF` [count, side, side], and with 16-bit storage `inverse_diagonalF` [count, side]
std::vector<HeldTensor> inverse_tensors(const LayerShape& layer);
/// Bytes of such tensors of one layer, where the state's own type has `element_bytes` and storage is the layer's.
int64_t bytes_of(const std::vector<HeldTensor>& tensors, FactorDtype storage, int64_t element_bytes);
/// Elements of inverse_tensors(): Σ count·(side² + side) with eigen.
int64_t eigenbasis_elements(const LayerShape& layer);
/// 9·count·side³: what a full symmetric eigensolver takes about, with its eigenvectors; count·side³ for an inverse by
/// Cholesky.
double decomposition_flops(const LayerShape& layer, const FactorShape& factor);
/// The products of one gradient with the factors' bases, there and back: 4·Σ over factors of elements · side; half of
/// that with inverses.
double precondition_flops(const LayerShape& layer);
/// count·side³: the cost of decomposing one factor, in units that only compare.
double decomposition_cost(const FactorShape& factor);

/// Whether `layer` is held as C ⊗ K under `form`: a convolution with more than one kernel offset and more than one
/// channel a group, and, under `automatic`, an input side above `max_factor_dim`.
bool is_separable(const LayerShape& layer, ConvFactors form, int64_t max_factor_dim);
/// `layer` with the fewest equal blocks that keep A's and G's sides to `max_side`: blocks divide the channels (the
/// features of Linear), so that a prime number of them leaves blocks of one. A block holds all offsets of its channels,
/// and the bias' column only where A is one block.
LayerShape in_blocks(LayerShape layer, int64_t max_side);

}  // namespace spillway::kfac
