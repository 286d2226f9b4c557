/// The last part of a step: natural gradients in place of gradients.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kfac/batch_scales.h"
#include "kfac/inverse/precondition.h"

namespace spillway::kfac {

/// Preconditions the layers' gradients with the inverses in use, shares and clips them. Small layers of one shape are
/// preconditioned as one, because a step of small layers takes as long as its operators are many.
class GradientPreconditioner {
 public:
  GradientPreconditioner(const Setup& setup, const std::vector<LayerBatch>& batches, const LayerInverses& inverses,
                         const LayerDampings& dampings, Tally& tally);

  /// Rewrites the gradients of all layers that have one. Collective. Throws c10::Error for a layer with a gradient for
  /// its weight alone, and ddl::CommError.
  void step();
  /// Does Kfac's adapt_damping(). Call it with the counters of after the step.
  double adapt_damping(double loss_before, double loss_after);
  /// Forgets the last step.
  void resume() { has_product_ = false; }
  /// Returns FactorBytes::scales.
  int64_t scale_bytes() const { return scales_.bytes(); }

 private:
  void precondition_batch(size_t b);
  void precondition_together(size_t b);
  void precondition_layer(size_t layer, const LayerScales& scales);
  void sum_up();
  LayerGradient gradient_of(size_t layer) const;
  void share_gradients();
  void clip();
  void scale_gradients(const at::Tensor& nu);

  const Setup& setup_;
  const std::vector<LayerBatch>& batches_;
  const LayerInverses& inverses_;
  Tally& tally_;
  BatchScales scales_;
  std::vector<size_t> preconditioned_;  ///< layers of this step
  std::vector<at::Tensor> sums_;        ///< by layer: ⟨V, ∇⟩, ‖V‖² and ‖W‖², [3], of these layers
  std::vector<size_t> to_sum_up_;       ///< layers that were preconditioned together, and have no sums yet
  std::vector<at::Tensor> products_;    ///< ⟨V, ∇⟩ of these, one behind the other
  int64_t elements_to_sum_up_ = 0;
  at::Tensor nu_;             ///< ν of the last step, 0-dim
  at::Tensor product_;        ///< Σ|⟨V, ∇⟩| of the last step, 0-dim
  bool has_product_ = false;  ///< true until adapt_damping() has used the product
};

}  // namespace spillway::kfac
