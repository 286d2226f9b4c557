/// The statistics of one layer: sums of outer products over samples and positions, and their running averages.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "kfac/factors/capture.h"
#include "kfac/factors/lattice.h"
#include "kfac/factors/running_averages.h"
#include "kfac/plan/layer_curvature.h"
#include "kfac/plan/layer_shape.h"

namespace spillway::kfac {

/// The memory and the manner of sums over patches.
struct PatchWork {
  // NOLINTNEXTLINE(google-explicit-constructor): most callers give the bytes alone
  PatchWork(int64_t bytes, bool may_shift_inputs = true) : workspace_bytes(bytes), may_shift(may_shift_inputs) {}
  int64_t workspace_bytes;  ///< most bytes of patches or copies at a time; one row of patches is always formed
  /// True where products of a CPU's input with its own shifts may replace patches: the same sum, in another order.
  bool may_shift;
};

/// Adds an estimate of Σ ããᵀ over the positions of one use to `sum` [count, side, side]. `count` is the number of equal
/// blocks of the channels (a convolution's groups, and blocks within them). ã = [patch; 1] where side is one more than
/// the patch. The estimate is the sum over `lattice` times its weight: the sum itself where the lattice has all
/// positions. A lattice of Linear has one dimension, the rows.
///
/// This function and add_channel_products(), add_offset_products() and add_output_products() add in sum's type. They
/// form patches or copies as `work` says, and products of 128 rows of `sum`. They return the floating-point operations
/// that their products took. `input` and `gradient` are [rows, features] for Linear (geometry null), else
/// [batch, channels, *spatial]; any strides.
double add_input_products(const at::Tensor& sum, const at::Tensor& input, const Geometry* geometry,
                          const Lattice& lattice, const PatchWork& work);
/// Adds tr_K of the sum that add_input_products() forms. That is Σ over positions and offsets of the channels'
/// products; sum is [groups, channels, channels]. Forms no patches: each input position counts as often as patches
/// contain it.
double add_channel_products(const at::Tensor& sum, const at::Tensor& input, const Geometry& geometry,
                            const Lattice& lattice, const PatchWork& work);
/// Adds tr_C of the sum that add_input_products() forms. That is Σ over positions and channels of the offsets'
/// products; sum is [groups, volume, volume].
double add_offset_products(const at::Tensor& sum, const at::Tensor& input, const Geometry& geometry,
                           const Lattice& lattice, const PatchWork& work);
/// Adds Σ ggᵀ over positions: sum is [count, side, side], for `count` equal blocks of the outputs.
double add_output_products(const at::Tensor& sum, const at::Tensor& gradient, int64_t workspace_bytes);

/// The multipliers under a convention for sums over N rows, with S rows per sample and `batch` samples, B.
struct FactorScales {
  double input, output;
};
FactorScales factor_scales(Convention convention, int64_t batch, double rows, double positions);

/// One layer's factors under a Convention, in the order of LayerShape::factors(). Under `fisher`
///   A = 1/(B·S) Σ ããᵀ,   G = B Σ ggᵀ,   g the raw autograd gradient of a loss that is a mean over B samples.
/// B and the sums run over all that was staged since the last commit. Therefore m micro-batches whose losses are scaled
/// by 1/m equal one batch m times larger: G = (m·B_micro) Σ ggᵀ with g = 1/(m·B_micro) ∂ℓ/∂y. Over W ranks that each
/// see g_r of their own mean loss, the global gradient is g = g_r/W and B = W·B_r, so
///   B Σ ggᵀ = W·B_r Σ_r Σ g_r g_rᵀ / W² = mean over ranks of (B_r Σ g_r g_rᵀ):
/// averaging over ranks is all that is needed, for A as well. (reduce_factors() weighs ranks that saw unequal numbers.)
/// C and K are sums that are averaged in the same way, before K is normalized. A reused layer's uses count as further
/// positions. Under the other conventions ranks are averaged too. Where averages start at I, those of C and K start at
/// the partial traces of I.
class LayerFactors {
 public:
  /// Allocates the running averages, zero, a triangle each, as `shape.storage` says. Allocates none where this
  /// rank does not hold them. `like` gives the type of the staged sums, and the device.
  LayerFactors(const LayerShape& shape, const at::TensorOptions& like, const PatchWork& work,
               Convention convention = Convention::fisher, bool held = true,
               FactorSamples samples = FactorSamples::exact());

  const LayerShape& shape() const { return shape_; }
  /// True for a use of the layer's own sizes and groups.
  bool fits(const Captured& captured) const;
  /// Adds one use of the layer, which fits. The first use allocates the staged sums. Where positions are sampled,
  /// `seed` draws the lattices.
  void stage(const Captured& captured, uint64_t seed = 0);
  const std::vector<at::Tensor>& staged() const { return staged_; }
  /// Returns the number of positions (of all samples and uses) that were staged.
  int64_t positions() const { return rows_; }
  /// Turns the staged sums into this rank's new factors and returns them. `batch` samples were seen, of a loss that was
  /// multiplied by `loss_scale`. The factors are zeros when nothing was staged.
  const std::vector<at::Tensor>& finish(int64_t batch, double loss_scale = 1);
  /// Returns the new factors beside the running averages that take them in, where these are held. The layer lets go of
  /// the new factors.
  std::vector<AverageUpdate> take_updates();
  void discard();

  /// Returns the running averages in the order of LayerShape::factors(); empty where this rank holds none.
  const std::vector<StoredTriangle>& running() const { return running_; }
  /// Returns the running averages as new tensors [count, side, side] of float32 (float64).
  std::vector<at::Tensor> averages() const;
  /// Returns the floating-point operations of all products so far.
  double flops() const { return flops_; }

 private:
  Lattice lattice_of(const Captured& captured, size_t factor, uint64_t seed) const;
  std::vector<at::Tensor> zeros() const;
  double start(size_t factor) const;

  LayerShape shape_;
  at::TensorOptions options_;
  PatchWork work_;
  Convention convention_;
  FactorSamples sampling_;
  std::vector<StoredTriangle> running_;
  std::vector<at::Tensor> staged_;
  int64_t rows_ = 0;     ///< all rows that were staged
  int64_t samples_ = 0;  ///< samples that the rows belong to; a Linear layer's rows are samples
  double flops_ = 0;
};

}  // namespace spillway::kfac
