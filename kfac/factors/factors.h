/// The statistics of one layer: sums of outer products over samples and positions, and their running averages.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "kfac/factors/capture.h"
#include "kfac/factors/stored_matrix.h"
#include "kfac/plan/layer_shape.h"

namespace spillway::kfac {

/// Each adds one use's sum to `sum`, in sum's type, forming at most `workspace_bytes` of patches or copies at a time
/// (one row of patches is always formed), and returns the floating-point operations that its products took. `input` and
/// `gradient`: [rows, features] for Linear (geometry null), else [batch, channels, *spatial]; any strides. Σ ããᵀ over
/// positions: sum is [count, side, side], for `count` equal blocks of the channels (a convolution's groups, and blocks
/// within them); ã = [patch; 1] where side is one more than the patch.
double add_input_products(const at::Tensor& sum, const at::Tensor& input, const Geometry* geometry,
                          int64_t workspace_bytes);
/// tr_K of the above: Σ over positions and offsets of the channels' products, sum is [groups, channels, channels].
/// No patches: each input position counts as often as patches contain it.
double add_channel_products(const at::Tensor& sum, const at::Tensor& input, const Geometry& geometry,
                            int64_t workspace_bytes);
/// tr_C of the above: Σ over positions and channels of the offsets' products, sum is [groups, volume, volume].
double add_offset_products(const at::Tensor& sum, const at::Tensor& input, const Geometry& geometry,
                           int64_t workspace_bytes);
/// Σ ggᵀ over positions: sum is [count, side, side], for as many equal blocks of the outputs.
double add_output_products(const at::Tensor& sum, const at::Tensor& gradient, int64_t workspace_bytes);

/// F ← decay·F + (1−decay)·F_new. While F is zero, which stands for a factor that nobody has seen, F ← F_new, or with
/// a `start` > 0 F ← decay·start·I + (1−decay)·F_new. An F_new that is not finite is dropped and adds one to `dropped`
/// (a 0-dim int64 tensor); a zero F_new changes nothing. Overwrites `fresh`. Decided on the device.
void update_running_average(const at::Tensor& running, const at::Tensor& fresh, double decay, const at::Tensor& dropped,
                            double start = 0);

/// What sums over N rows, S of them a sample, are multiplied by under a convention; `batch` samples, B.
struct FactorScales {
  double input, output;
};
FactorScales factor_scales(Convention convention, int64_t batch, double rows, double positions);

/// One layer's factors under a Convention, in the order of LayerShape::factors(). Under `fisher`
///   A = 1/(B·S) Σ ããᵀ,   G = B Σ ggᵀ,   g the raw autograd gradient of a loss that is a mean over B samples.
/// B and the sums run over all that was staged since the last commit, so that m micro-batches whose losses are scaled
/// by 1/m equal one batch m times larger: G = (m·B_micro) Σ ggᵀ with g = 1/(m·B_micro) ∂ℓ/∂y. Over W ranks that each
/// see g_r of their own mean loss, the global gradient is g = g_r/W and B = W·B_r, so
///   B Σ ggᵀ = W·B_r Σ_r Σ g_r g_rᵀ / W² = mean over ranks of (B_r Σ g_r g_rᵀ):
/// averaging over ranks is all that is needed, for A as well (reduce_factors weighs ranks that saw unequal numbers). C
/// and K are sums that are averaged alike, before K is normalised. A reused layer's uses count as further positions.
/// Under the other conventions ranks are averaged too; where averages start at I, those of C and K start at its partial
/// traces.
class LayerFactors {
 public:
  /// Running averages are born here, zero, [count, side, side] each, as `shape.storage` says; none where this rank does
  /// not hold them. `like`: the type of what is staged, and the device.
  LayerFactors(const LayerShape& shape, const at::TensorOptions& like, int64_t workspace_bytes,
               Convention convention = Convention::fisher, bool held = true);

  const LayerShape& shape() const { return shape_; }
  /// Adds one use of the layer. The staged sums are born at the first. Ignores a use whose sizes are not the layer's.
  void stage(const Captured& captured);
  const std::vector<at::Tensor>& staged() const { return staged_; }
  /// Positions (of all samples and uses) that were staged.
  int64_t positions() const { return rows_; }
  /// Turns the staged sums into this rank's new factors; `batch` samples were seen, of a loss that was multiplied by
  /// `loss_scale`. Zeros when nothing was staged.
  const std::vector<at::Tensor>& finish(int64_t batch, double loss_scale = 1);
  /// Takes the new factors into the running averages, where they are held, and frees them.
  void commit(double decay, const at::Tensor& dropped);
  void discard();

  /// In the order of LayerShape::factors(); empty where this rank holds none.
  const std::vector<StoredMatrix>& running() const { return running_; }
  /// They as float32 (float64): with 16-bit storage new tensors.
  std::vector<at::Tensor> averages() const;
  /// Floating-point operations of all products so far.
  double flops() const { return flops_; }

 private:
  bool fits(const Captured& captured) const;
  std::vector<at::Tensor> zeros() const;
  double start(size_t factor) const;

  LayerShape shape_;
  at::TensorOptions options_;
  int64_t workspace_bytes_;
  Convention convention_;
  std::vector<StoredMatrix> running_;
  std::vector<at::Tensor> staged_;
  int64_t rows_ = 0;     ///< all that was staged
  int64_t samples_ = 0;  ///< that the rows belong to; a Linear layer's rows are samples
  double flops_ = 0;
};

}  // namespace spillway::kfac
