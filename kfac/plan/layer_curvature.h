/// The rows, the rank and the steps of each layer's curvature, as numbers. LibTorch-free.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kfac/plan/eigen_rank.h"
#include "kfac/plan/factor_samples.h"

namespace spillway::kfac {

/// The curvature of one layer. Its factors are updated and decomposed together: in step 0, and then in every step t
/// with t mod `interval` = `slot`.
struct LayerCurvature {
  std::string layer;  ///< name of the layer
  FactorSamples samples = FactorSamples::automatic();
  EigenRank rank = EigenRank::automatic();
  int64_t interval = 1;  ///< steps between updates, ≥ 1
  int64_t slot = 0;      ///< the step of an interval that updates, 0 to interval − 1

  bool is_due(int64_t step) const { return step == 0 || step % interval == slot; }
  bool operator==(const LayerCurvature&) const = default;
};

/// The longest cycle of steps after which all intervals of a model begin anew.
inline constexpr int64_t kLongestCycle = 1024;

/// Throws BadRequest naming the layer, the field and the allowed range. The least common multiple of the intervals may
/// be kLongestCycle at most, because each step of a cycle is a kind of step of its own.
void validate(const std::vector<LayerCurvature>& layers);

/// The layers whose curvature is renewed in each step of a cycle, and the names of these kinds of step.
class UpdateCycle {
 public:
  /// Makes the cycle of layers that are always renewed together.
  explicit UpdateCycle(size_t layers);
  /// `layers` passed validate().
  explicit UpdateCycle(const std::vector<LayerCurvature>& layers);

  /// Returns the sets of layers, in ascending order, that some step renews. The first one has all layers.
  const std::vector<std::vector<size_t>>& sets() const { return sets_; }
  /// Returns the index in sets() of the layers that `step` renews.
  size_t set_of(int64_t step) const { return step == 0 ? 0 : set_of_step_[step % set_of_step_.size()]; }
  /// Returns the name of the kind of step that renews a set: `factor+decompose` for all layers, `plain` for none, and
  /// else `curvature N`, N the first step of the cycle that does so.
  std::string_view kind(size_t set) const { return kinds_[set]; }
  /// Returns the steps after which all intervals begin anew.
  int64_t length() const { return std::ssize(set_of_step_); }

 private:
  std::vector<std::vector<size_t>> sets_;
  std::vector<std::string> kinds_;
  std::vector<size_t> set_of_step_;
};

}  // namespace spillway::kfac
