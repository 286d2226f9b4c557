/// A preconditioned layer as numbers: what its factors are, how many bytes they take and what they cost. LibTorch-free,
/// so that placement and planning need no model.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kfac/options.h"

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

/// One square factor; a grouped convolution has one for each group, held as one [groups, side, side] tensor.
struct FactorShape {
  FactorRole role;
  int64_t side = 0;
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
  InverseForm inverse = {};

  int64_t kernel_volume() const;
  /// A's side if it were held in full: in/groups · kernel volume, and one for the bias.
  int64_t input_side() const;
  /// The factors it holds, in the order in which they are kept, reduced and decomposed.
  std::vector<FactorShape> factors() const;
  /// Elements of the weight gradient and the bias gradient: what a broadcast of the preconditioned gradient carries.
  int64_t gradient_elements() const;
};

/// Σ groups·side² over the layer's factors.
int64_t factor_elements(const LayerShape& layer);
/// One tensor that gradient workers hold of a layer, sent to them by the owner of factor number `factor`.
struct InverseTensor {
  std::string name;
  std::vector<int64_t> sizes;
  size_t factor = 0;
  int64_t elements() const;
};
/// All that a gradient worker holds of the layer, in the order in which it is sent. For factor f of [groups, side,
/// side]:
///   eigen:       `vectorsF` [groups, side, side], `valuesF` [groups, side]; with precompute_outer the values give way
///                to one `reciprocal` [groups, out/groups, columns of the gradient], sent by G's owner
///   plain, pi:   `inverseF` [groups, side, side]
std::vector<InverseTensor> inverse_tensors(const LayerShape& layer);
/// Elements of inverse_tensors(): Σ groups·(side² + side) with eigen.
int64_t eigenbasis_elements(const LayerShape& layer);
/// 9·groups·side³: what a full symmetric eigensolver takes about, with its eigenvectors; groups·side³ for an inverse by
/// Cholesky.
double decomposition_flops(const LayerShape& layer, const FactorShape& factor);
/// The products of one gradient with the factors' bases, there and back: 4·Σ over factors of elements · side; half of
/// that with inverses.
double precondition_flops(const LayerShape& layer);
/// groups·side³: the cost of decomposing one factor, in units that only compare.
double decomposition_cost(const LayerShape& layer, const FactorShape& factor);

/// Whether `layer` is held as C ⊗ K under `form`: a convolution with more than one kernel offset and more than one
/// channel a group, and, under `automatic`, an input side above `max_factor_dim`.
bool is_separable(const LayerShape& layer, ConvFactors form, int64_t max_factor_dim);

}  // namespace spillway::kfac
