/// The layers of a model that can be preconditioned.
#pragma once
#include <torch/nn/module.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kfac/plan/layer_shape.h"
#include "kfac/plan/options.h"

namespace torch::autograd {
struct Node;
}

namespace spillway::kfac {

/// A layer and its parameters (shared with the model, not copied). `bias` is undefined where there is none.
struct Layer {
  LayerShape shape;
  at::Tensor weight;
  at::Tensor bias;
};

/// A module with parameters that stays first-order, and the reason.
struct SkippedLayer {
  std::string name;
  std::string reason;
};

/// The layers of a model, and the modules that K-FAC leaves to the optimizer.
struct FoundLayers {
  std::vector<Layer> layers;  ///< in the order of Module::named_modules; a shared weight appears once
  std::vector<SkippedLayer> left_alone;
};

/// A module that owns parameters, as another language or library has it. `weight` and `bias` are its own tensors.
struct ForeignModule {
  std::string name;                    ///< in the model: `encoder.0.conv`
  std::string type;                    ///< for messages: `ConvTranspose3d`
  std::optional<LayerKind> kind = {};  ///< nothing: no kind that K-FAC knows
  int64_t groups = 1;                  ///< a convolution's groups
  at::Tensor weight = {};              ///< [out, in / groups, kernel…]
  at::Tensor bias = {};                ///< [out], or undefined
};

/// Looks at an opaque node of a watched graph: a function of the user's or of a compiler. When the node's backward will
/// run layers again and go back through them, it arranges that `watch` is called with their outputs before that.
using RerunFinder =
    std::function<void(torch::autograd::Node& node, const std::function<void(at::TensorList outputs)>& watch)>;

/// Finds Linear, Conv1d, Conv2d and Conv3d with any stride, padding, padding mode, dilation and groups, with or without
/// bias. It leaves alone names that match `options.skip`, frozen weights, and Linear sides above max_linear_dim (unless
/// block_linear). It also leaves alone every other module that owns parameters (transposed convolutions, embeddings,
/// norms, recurrent layers).
FoundLayers find_layers(const torch::nn::Module& model, const KfacOptions& options);

/// Finds the same among `modules`, in their order. A module of no known kind is left alone.
FoundLayers find_layers(const std::vector<ForeignModule>& modules, const KfacOptions& options);

/// Returns the layers' shapes, in their order.
std::vector<LayerShape> shapes_of(const std::vector<Layer>& layers);

/// Returns the type and device of the state that is kept for `weight`: float64 weights have float64 state, all others
/// float32.
at::TensorOptions state_options(const at::Tensor& weight);

}  // namespace spillway::kfac
