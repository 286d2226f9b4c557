#include "kfac/factors/layers.h"

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <regex>
#include <unordered_map>
#include <unordered_set>

#include "core/error.h"

namespace spillway::kfac {
namespace {

template <class Conv>
bool describe_convolution(const torch::nn::Module& module, LayerKind kind, ForeignModule& described) {
  const auto* conv = module.as<Conv>();
  if (!conv) return false;
  described.kind = kind;
  described.groups = conv->options.groups();
  described.weight = conv->weight;
  described.bias = conv->bias;
  return true;
}

ForeignModule describe(const std::string& name, const torch::nn::Module& module) {
  ForeignModule described{.name = name, .type = module.name()};
  if (const auto* linear = module.as<torch::nn::LinearImpl>()) {
    described.kind = LayerKind::linear;
    described.weight = linear->weight;
    described.bias = linear->bias;
  } else if (!describe_convolution<torch::nn::Conv1dImpl>(module, LayerKind::conv1d, described) &&
             !describe_convolution<torch::nn::Conv2dImpl>(module, LayerKind::conv2d, described)) {
    describe_convolution<torch::nn::Conv3dImpl>(module, LayerKind::conv3d, described);
  }
  return described;
}

Layer as_layer(const ForeignModule& module) {
  Layer layer{{}, module.weight, module.bias};
  layer.shape.name = module.name;
  layer.shape.kind = *module.kind;
  layer.shape.groups = module.groups;
  layer.shape.kernel = layer.weight.sizes().slice(2).vec();
  layer.shape.out = layer.weight.size(0);
  layer.shape.in = layer.weight.size(1) * layer.shape.groups;
  // A bias that is frozen is no part of the gradient.
  if (layer.bias.defined() && !layer.bias.requires_grad()) layer.bias = at::Tensor();
  layer.shape.bias = layer.bias.defined();
  return layer;
}

/// Returns the weights that have several biases, and the biases that several weights have. A column of ones stands for
/// one bias of one weight, so these biases are left to the optimizer.
std::unordered_set<const void*> shared_otherwise(const std::vector<ForeignModule>& modules) {
  std::unordered_map<const void*, const void*> partner;
  std::unordered_set<const void*> shared;
  const auto pair_up = [&](const void* one, const void* other) {
    if (partner.emplace(one, other).first->second != other) shared.insert(one);
  };
  for (const ForeignModule& module : modules) {
    if (!module.kind) continue;
    const Layer layer = as_layer(module);
    const void* const weight = layer.weight.unsafeGetTensorImpl();
    const void* const bias = layer.bias.defined() ? layer.bias.unsafeGetTensorImpl() : nullptr;
    pair_up(weight, bias);
    if (bias) pair_up(bias, weight);
  }
  return shared;
}

bool is_long(const LayerShape& shape, const KfacOptions& options) {
  return shape.kind == LayerKind::linear && std::max(shape.input_side(), shape.out) > options.max_linear_dim;
}

LayerShape in_form(LayerShape shape, const KfacOptions& options) {
  if (is_long(shape, options)) return in_blocks(std::move(shape), options.max_linear_dim);
  if (shape.kind == LayerKind::linear) return shape;
  if (options.conv_factors == ConvFactors::block) return in_blocks(std::move(shape), options.max_factor_dim);
  shape.separable = is_separable(shape, options.conv_factors, options.max_factor_dim);
  return shape;
}

// Returns the reason why a supported layer stays first-order; empty when it does not.
std::string reason_against(const Layer& layer, const KfacOptions& options) {
  const auto& shape = layer.shape;
  const auto matches = [&](const std::string& pattern) { return std::regex_search(shape.name, std::regex(pattern)); };
  if (std::any_of(options.skip.begin(), options.skip.end(), matches)) return "skipped by name";
  if (!layer.weight.requires_grad()) return "weight is frozen";
  if (!layer.weight.is_floating_point()) return "weight is not real floating point";
  if (is_long(shape, options) && !options.block_linear)
    return "side " + std::to_string(std::max(shape.input_side(), shape.out)) + " exceeds max_linear_dim " +
           std::to_string(options.max_linear_dim);
  return {};
}

// Gives each layer the rank that its curvature says. Refuses the curvature of another model.
void apply(const std::vector<LayerCurvature>& curvature, std::vector<Layer>& layers) {
  if (curvature.empty()) return;
  if (curvature.size() != layers.size())
    throw BadRequest(str("[kfac.options] layer_curvature is of ", curvature.size(), " layers, and the model has ",
                         layers.size(), " that are preconditioned"));
  for (size_t i = 0; i < layers.size(); ++i) {
    auto& shape = layers[i].shape;
    if (curvature[i].layer != shape.name)
      throw BadRequest(str("[kfac.options] layer_curvature has layer '", curvature[i].layer, "' where the model has '",
                           shape.name, "'"));
    if (shape.inverse.method == Method::eigen) shape.inverse.rank = curvature[i].rank;
  }
}

}  // namespace

std::vector<LayerShape> shapes_of(const std::vector<Layer>& layers) {
  std::vector<LayerShape> shapes;
  for (const auto& layer : layers) shapes.push_back(layer.shape);
  return shapes;
}

at::TensorOptions state_options(const at::Tensor& weight) {
  return at::TensorOptions()
      .device(weight.device())
      .dtype(weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

FoundLayers find_layers(const std::vector<ForeignModule>& modules, const KfacOptions& options) {
  FoundLayers found;
  const std::unordered_set<const void*> shared = shared_otherwise(modules);
  std::unordered_set<const void*> seen;  // weights
  for (const ForeignModule& module : modules) {
    if (!module.kind) {
      found.left_alone.push_back({module.name, module.type + " is not supported"});
      continue;
    }
    Layer layer = as_layer(module);
    if (shared.contains(layer.bias.unsafeGetTensorImpl()) || shared.contains(layer.weight.unsafeGetTensorImpl())) {
      layer.bias = at::Tensor();
      layer.shape.bias = false;
    }
    layer.shape.inverse = {options.method, options.precompute_outer, options.rank_in_use()};
    layer.shape.storage = options.storage;
    layer.shape = in_form(std::move(layer.shape), options);
    if (auto reason = reason_against(layer, options); !reason.empty()) {
      found.left_alone.push_back({module.name, std::move(reason)});
      continue;
    }
    if (seen.insert(layer.weight.unsafeGetTensorImpl()).second) found.layers.push_back(std::move(layer));
  }
  apply(options.layer_curvature, found.layers);
  return found;
}

FoundLayers find_layers(const torch::nn::Module& model, const KfacOptions& options) {
  std::vector<ForeignModule> modules;
  const auto consider = [&](const std::string& name, const torch::nn::Module& module) {
    if (!module.parameters(/*recurse=*/false).empty()) modules.push_back(describe(name, module));
  };
  // The model itself may live on the stack, so it is not asked for a shared pointer.
  consider("", model);
  for (const auto& item : model.named_modules("", /*include_self=*/false)) consider(item.key(), *item.value());
  return find_layers(modules, options);
}

}  // namespace spillway::kfac
