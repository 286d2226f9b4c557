/// The damping of each layer, as all layers of a step have it.
#pragma once
#include <ATen/core/Tensor.h>

#include "kfac/inverse/layer_inverse.h"

namespace spillway::kfac {

/// The dampings of all layers at one time.
struct StepDamping {
  Damping common = {};         ///< the damping without a layer's curvature
  at::Tensor curvatures = {};  ///< DampingScope::network's curvature of each layer, [layers]; undefined in other scopes

  Damping of(size_t layer) const {
    Damping damping = common;
    if (curvatures.defined()) damping.curvature = curvatures[static_cast<int64_t>(layer)];
    return damping;
  }
  /// Returns the damping with the curvatures of all layers.
  Damping of_all() const {
    Damping damping = common;
    damping.curvature = curvatures;
    return damping;
  }
};

}  // namespace spillway::kfac
