#include "kfac/factors/capture.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/generated/Functions.h>

#include <array>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_set>

namespace spillway::kfac {
namespace {

namespace ag = torch::autograd;

class GradientTap final : public ag::FunctionPreHook {
 public:
  explicit GradientTap(std::function<void(const at::Tensor&)> read) : read_(std::move(read)) {}
  ag::variable_list operator()(const ag::variable_list& gradients) override {
    if (gradients[0].defined()) read_(gradients[0]);
    return gradients;
  }

 private:
  std::function<void(const at::Tensor&)> read_;
};

// True when `node` may stand between an operator and its weight without changing the layer that the weight belongs to.
bool passes_a_weight_on(std::string_view node) {
  constexpr std::array<std::string_view, 9> names{"TBackward0",      "TransposeBackward0",  "PermuteBackward0",
                                                  "ViewBackward0",   "UnsafeViewBackward0", "ToCopyBackward0",
                                                  "ExpandBackward0", "UnsqueezeBackward0",  "ReshapeAliasBackward0"};
  return std::find(names.begin(), names.end(), node) != names.end();
}

/// True when a node on the way to a weight swaps its rows with its columns.
bool transposes(const ag::Node& node) {
  if (const auto* permute = dynamic_cast<const ag::generated::PermuteBackward0*>(&node)) {
    const auto sides = std::ssize(permute->dims);
    return sides > 1 && (permute->dims.back() + sides) % sides != sides - 1;
  }
  return dynamic_cast<const ag::generated::TBackward0*>(&node) ||
         dynamic_cast<const ag::generated::TransposeBackward0*>(&node);
}

/// The weight that an operator was given. `transposed` is true when it was given the transpose.
struct WeightUse {
  const at::TensorImpl* weight = nullptr;
  bool transposed = false;
};

WeightUse weight_behind(const ag::Edge& edge) {
  constexpr int kMaxChain = 16;
  WeightUse use;
  ag::Node* node = edge.function.get();
  for (int hop = 0; node && hop < kMaxChain; ++hop) {
    if (auto* leaf = dynamic_cast<ag::AccumulateGrad*>(node)) {
      use.weight = leaf->variable.unsafeGetTensorImpl();
      return use;
    }
    if (!passes_a_weight_on(node->name())) return {};
    use.transposed ^= transposes(*node);
    node = node->next_edge(0).function.get();
  }
  return {};
}

std::vector<int64_t> concrete(const std::vector<c10::SymInt>& symbolic) {
  std::vector<int64_t> values;
  for (const auto& value : symbolic) values.push_back(value.guard_int(__FILE__, __LINE__));
  return values;
}

std::shared_ptr<Geometry> geometry_of(const ag::generated::ConvolutionBackward0& node, const at::Tensor& weight) {
  return std::make_shared<Geometry>(Geometry{weight.sizes().slice(2).vec(), concrete(node.stride),
                                             concrete(node.padding), concrete(node.dilation),
                                             node.groups.guard_int(__FILE__, __LINE__)});
}

/// An operator of the graph that uses a layer's weight.
struct Use {
  ag::Node* node;
  size_t layer;
  std::function<Captured(const at::Tensor& gradient)> capture;
};

// Returns the use of `node`, a convolution.
std::optional<Use> use_of(ag::generated::ConvolutionBackward0& node, const WeightIndex& weights) {
  const auto layer = weights.find(weight_behind(node.next_edge(1)).weight);
  if (node.transposed || layer == weights.end()) return std::nullopt;
  const auto geometry = geometry_of(node, node.weight_.unpack(node.getptr()));
  return Use{&node, layer->second, [&node, geometry, index = layer->second](const at::Tensor& gradient) {
               return Captured{index, node.input_.unpack(node.getptr()), gradient, geometry.get()};
             }};
}

// Returns the use of `node`, y = x Wᵀ (+ b). x may have any leading dimensions, which are all rows of the statistics.
// `transposed` is true when the operator is given Wᵀ. An operator that multiplies by W itself, as a tied decoder does,
// is no use, because A and G swap their roles in it.
std::optional<Use> use_of_product(ag::Node& node, ag::SavedVariable& input, uint32_t weight_edge, bool transposed,
                                  const WeightIndex& weights) {
  const WeightUse use = weight_behind(node.next_edge(weight_edge));
  const auto layer = weights.find(use.weight);
  if (layer == weights.end() || use.transposed != transposed) return std::nullopt;
  return Use{&node, layer->second, [&node, &input, index = layer->second](const at::Tensor& gradient) {
               const auto x = input.unpack(node.getptr());
               return Captured{index, x.reshape({-1, x.size(-1)}), gradient.reshape({-1, gradient.size(-1)})};
             }};
}

std::optional<Use> use_of(ag::Node* node, const WeightIndex& weights) {
  if (auto* conv = dynamic_cast<ag::generated::ConvolutionBackward0*>(node)) return use_of(*conv, weights);
  if (auto* addmm = dynamic_cast<ag::generated::AddmmBackward0*>(node))
    return use_of_product(*addmm, addmm->mat1_, 2, /*transposed=*/true, weights);
  if (auto* mm = dynamic_cast<ag::generated::MmBackward0*>(node))
    return use_of_product(*mm, mm->self_, 1, /*transposed=*/true, weights);
  if (auto* bmm = dynamic_cast<ag::generated::BmmBackward0*>(node))
    return use_of_product(*bmm, bmm->self_, 1, /*transposed=*/true, weights);
  if (auto* linear = dynamic_cast<ag::generated::LinearBackward0*>(node))
    return use_of_product(*linear, linear->input_, 1, /*transposed=*/false, weights);
  return std::nullopt;
}

// Returns the uses of the layers behind `loss`, in the order of the walk.
std::vector<Use> find_uses(at::TensorList roots, const WeightIndex& weights) {
  std::vector<Use> uses;
  std::vector<ag::Node*> stack;
  std::unordered_set<ag::Node*> seen;
  for (const at::Tensor& tensor : roots) {
    const auto& root = tensor.grad_fn();
    TORCH_CHECK(root, "[kfac.tap] the loss has no graph: watch it after forward and before backward");
    if (seen.insert(root.get()).second) stack.push_back(root.get());
  }
  while (!stack.empty()) {
    auto* node = stack.back();
    stack.pop_back();
    if (auto use = use_of(node, weights)) uses.push_back(std::move(*use));
    for (const auto& edge : node->next_edges())
      if (edge.function && seen.insert(edge.function.get()).second) stack.push_back(edge.function.get());
  }
  return uses;
}

}  // namespace

int64_t install_capture_hooks(at::TensorList roots, const WeightIndex& weights, const Sink& sink,
                              std::vector<int64_t>* uses) {
  const auto found = find_uses(roots, weights);
  for (const auto& [node, layer, capture] : found) {
    node->add_pre_hook(std::make_unique<GradientTap>([capture = capture, sink](const at::Tensor& gradient) {
      at::NoGradGuard no_grad;
      sink(capture(gradient));
    }));
    if (uses) ++(*uses)[layer];
  }
  return std::ssize(found);
}

std::vector<int64_t> count_positions(const at::Tensor& loss, const WeightIndex& weights, size_t layers) {
  std::vector<int64_t> positions(layers, 0);
  for (const auto& use : find_uses(loss, weights)) {
    // The gradient of an operator has the sizes of its output: [rows, out], or [batch, out, *spatial].
    const auto symbolic = use.node->input_metadata(0).shape_as_dim_vector();
    const auto sizes = concrete({symbolic.begin(), symbolic.end()});
    const bool is_convolution = dynamic_cast<ag::generated::ConvolutionBackward0*>(use.node);
    const int64_t out = is_convolution ? sizes[1] : sizes.back();
    positions[use.layer] += c10::multiply_integers(sizes) / out;
  }
  return positions;
}

}  // namespace spillway::kfac
