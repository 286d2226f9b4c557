/// The last part of a step: natural gradients in place of gradients.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kfac/inverse/precondition.h"
#include "kfac/refresh/layer_dampings.h"
#include "kfac/refresh/layer_inverses.h"

namespace spillway::kfac {

/// Preconditions the layers' gradients with the inverses in use, shares and clips them.
class GradientPreconditioner {
 public:
  GradientPreconditioner(const Setup& setup, const LayerInverses& inverses, const LayerDampings& dampings,
                         Tally& tally);

  /// Rewrites the gradients of all layers that have one. Collective. Throws c10::Error for a layer with a gradient for
  /// its weight alone, and ddl::CommError.
  void step();
  /// Does Kfac's adapt_damping(). Call it with the counters of after the step.
  double adapt_damping(double loss_before, double loss_after);
  /// Forgets the last step.
  void resume() { has_product_ = false; }

 private:
  bool has_gamma(size_t layer) const;
  void set_gammas();
  void precondition_layer(size_t layer);
  LayerGradient gradient_of(size_t layer) const;
  void share_gradients();
  void clip();

  const Setup& setup_;
  const LayerInverses& inverses_;
  const LayerDampings& dampings_;
  Tally& tally_;
  at::Tensor mean_curvatures_;          ///< by layer; defined where γ is of a step and not of a decomposition
  std::vector<int64_t> versions_;       ///< by layer: version of the inverse whose mean curvature is known
  at::Tensor gammas_;                   ///< γ of each layer; defined during step()
  std::vector<size_t> preconditioned_;  ///< layers of this step
  std::vector<at::Tensor> sums_;        ///< ⟨V, ∇⟩, ‖V‖² and ‖W‖² of these layers, [3] each
  at::Tensor nu_;                       ///< ν of the last step, 0-dim
  at::Tensor product_;                  ///< Σ|⟨V, ∇⟩| of the last step, 0-dim
  bool has_product_ = false;            ///< true until adapt_damping() has used the product
};

}  // namespace spillway::kfac
