/// The capture of each layer's input and output gradient, while backward reaches the layer.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <unordered_map>
#include <vector>

#include "kfac/factors/conv_geometry.h"

namespace spillway::kfac {

/// The tensors that backward shows of one use of one layer. They are views of tensors that autograd holds anyway: read
/// them inside the sink, keep none.
struct Captured {
  size_t layer = 0;     ///< index that WeightIndex gives for the weight
  at::Tensor input;     ///< Linear: [rows, in]; convolution: [batch, in, *spatial] as the operator saw it
  at::Tensor gradient;  ///< Linear: [rows, out]; convolution: [batch, out, *spatial]
  const Geometry* geometry = nullptr;  ///< the operator's own geometry; null for Linear
};
using Sink = std::function<void(const Captured&)>;

/// The layer that a weight belongs to, by the weight's TensorImpl.
using WeightIndex = std::unordered_map<const at::TensorImpl*, size_t>;

/// Walks the graph behind `roots`, the tensors that backward begins at, and adds a pre-hook to each operator whose
/// weight is in `weights`. These are convolutions, and matrix products with a Linear's transposed weight (any leading
/// dimensions, with or without bias). Operands that were cast, transposed, expanded or reshaped are followed to their
/// parameter. Padding that a module applies by itself (`same`, reflect, circular …) is in the input that is shown. A
/// layer used n times is shown n times. `sink` runs under NoGradGuard on the thread that runs backward, before the
/// operator's own backward. Cost: one visit per graph node; nothing is copied. Returns the number of hooks. `uses`,
/// where given, counts them by layer. Throws c10::Error when a root has no graph.
int64_t install_capture_hooks(at::TensorList roots, const WeightIndex& weights, const Sink& sink,
                              std::vector<int64_t>* uses = nullptr);

/// Returns the rows of each layer's factors in one backward of `loss`: the positions of all samples and uses, indexed
/// as `weights` says. The order of magnitude of a layer's work follows from it before anything is captured
/// (kfac/plan/curvature_plan.h). Cost: a walk of the graph, which is left as it is. Throws c10::Error when `loss` has
/// no graph.
std::vector<int64_t> count_positions(const at::Tensor& loss, const WeightIndex& weights, size_t layers);

}  // namespace spillway::kfac
