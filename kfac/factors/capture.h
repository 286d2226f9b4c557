/// The capture of each layer's input and output gradient, while backward reaches the layer.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "kfac/factors/conv_geometry.h"

namespace torch::autograd {
struct Node;
}

namespace spillway::kfac {

/// The tensors that backward shows of one use of one layer. They are views of tensors that autograd holds anyway: read
/// them inside the sink, keep none.
struct Captured {
  size_t layer = 0;  ///< index that WeightIndex gives for the weight
  /// Linear: [rows, in]; convolution: [batch, in, *spatial] as the operator saw it. Undefined where it is nested.
  at::Tensor input;
  at::Tensor gradient;                 ///< Linear: [rows, out]; convolution: [batch, out, *spatial]
  const Geometry* geometry = nullptr;  ///< the operator's own geometry; null for Linear
};
using Sink = std::function<void(const Captured&)>;

/// The layer that a weight belongs to, by the weight's TensorImpl.
using WeightIndex = std::unordered_map<const at::TensorImpl*, size_t>;

/// The manner of a walk of install_capture_hooks().
struct CaptureManner {
  /// An operator gets one hook of an owner, also when several walks meet it. Null: a hook of each walk.
  const void* owner = nullptr;
  /// Is told of each opaque node: a function of the user's or of a compiler, whose backward may run layers again.
  std::function<void(torch::autograd::Node& node)> meet_opaque = {};
};

/// The layers that a walk of a graph met.
struct GraphLayers {
  std::unordered_map<size_t, int64_t> uses;  ///< operators with a hook, by layer
  /// By layer: the name of a node that takes the weight, and is none of the operators with hooks.
  std::unordered_map<size_t, std::string> taken_by;
  std::string opaque;  ///< the name of an opaque node; empty where there is none
};

/// Walks the graph behind `roots`, the tensors that backward begins at, and adds a pre-hook to each operator whose
/// weight is in `weights`. These are convolutions, and matrix products with a Linear's transposed weight (any leading
/// dimensions, with or without bias). Operands that were cast, transposed, expanded or viewed are followed to their
/// parameter. Where the operator then has the weight in another form (kfac/factors/weight_use.h), it gets no hook.
/// Padding that a module applies by itself (`same`, reflect, circular …) is in the input that is shown. A layer used n
/// times is shown n times. `sink` runs under NoGradGuard on the thread that runs backward, before the operator's own
/// backward. An input that hooks of saved tensors keep (checkpoints, offloading) is unpacked in that moment, once for
/// `sink` and the operator together, because such hooks may give a tensor back once only. Cost: one visit per graph
/// node; nothing is copied or unpacked. Throws c10::Error when a root has no graph.
GraphLayers install_capture_hooks(at::TensorList roots, const WeightIndex& weights, const Sink& sink,
                                  const CaptureManner& manner = {});

/// Returns the rows of each layer's factors in one backward of `loss`: the positions of all samples and uses, indexed
/// as `weights` says. The order of magnitude of a layer's work follows from it before anything is captured
/// (kfac/plan/curvature_plan.h). Cost: a walk of the graph, which is left as it is. Throws c10::Error when `loss` has
/// no graph.
std::vector<int64_t> count_positions(const at::Tensor& loss, const WeightIndex& weights, size_t layers);

}  // namespace spillway::kfac
