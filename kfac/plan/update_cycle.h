/// The steps after which the layers' intervals begin anew. LibTorch-free.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kfac/plan/layer_curvature.h"

namespace spillway::kfac {

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
