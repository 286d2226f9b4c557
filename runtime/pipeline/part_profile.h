/// The time and the output of each part of a model.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/clock.h"
#include "runtime/models/task.h"
#include "runtime/passes/tensor_format.h"

namespace spillway::runtime {

/// The form of a part's output. The first dimension is the batch.
struct ValueShape {
  std::vector<int64_t> sizes = {};
  at::ScalarType type = at::kFloat;
  at::MemoryFormat format = at::MemoryFormat::Contiguous;

  /// Returns the bytes of the output.
  int64_t bytes() const;
  /// Makes a tensor of this form for a batch of `samples`.
  at::Tensor empty(int64_t samples, c10::Device device) const;
};

/// A part's output, and its time for one micro-batch.
struct PartProfile {
  ValueShape output = {};
  double forward_seconds = 0;
  double backward_seconds = 0;
  bool may_stand_alone = true;  ///< false: a stage needs other parts, too
};

/// Runs each part forward and backward by itself, and returns the shortest times of two rounds, by `now`. Parts'
/// weights get gradients, and running statistics change, so `task` should be a copy. No more than one part's graph is
/// kept. Throws c10::Error for a batch of another shape.
std::vector<PartProfile> profile_parts(const Task& task, const Batch& batch, Amp amp, const Now& now = steady_now());

}  // namespace spillway::runtime
