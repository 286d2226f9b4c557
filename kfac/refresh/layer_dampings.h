/// The damping that follows the layers' curvature from step to step.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kfac/refresh/setup.h"
#include "kfac/refresh/staged_factors.h"
#include "kfac/refresh/step_damping.h"

namespace spillway::kfac {

/// The layers' dampings. With DampingScope::network they follow the largest curvature that each layer has had.
class LayerDampings {
 public:
  LayerDampings(const Setup& setup, const StagedFactors& staged, Tally& tally);

  /// Takes the mean curvatures of `layers`, whose factors were updated, into the largest ones. Collective.
  void note(const std::vector<size_t>& layers);
  /// Sets the dampings of the coming step, from the options, the adapted scale and the largest curvatures. Collective
  /// over stages.
  void set();
  /// Returns the dampings that set() has set.
  const StepDamping& now() const { return now_; }
  /// Returns a number that grows whenever set() sets other dampings than before.
  int64_t version() const { return version_; }
  /// Returns the dampings of a refresh that opens now. Curvatures are those that the last step had.
  StepDamping at_opening() const { return {common(), now_.curvatures}; }
  /// Frees what only one step needs.
  void end_step();

  /// Returns KfacState::largest_curvature().
  const at::Tensor& largest() const { return largest_; }

 private:
  Damping common() const;
  /// Returns the mean eigenvalues [layers, kMaxFactors] of the factors of some layers: zero for other layers, one for a
  /// factor that a layer does not have. Collective.
  at::Tensor mean_eigenvalues(const std::vector<size_t>& layers) const;

  const Setup& setup_;
  const StagedFactors& staged_;
  Tally& tally_;
  at::Tensor largest_;
  at::Tensor absent_;  ///< bool [layers, kMaxFactors]: true for a factor that a layer does not have
  StepDamping now_;
  int64_t version_ = 0;
  bool has_changed_ = true;  ///< true from note() to set()
};

}  // namespace spillway::kfac
