#include "kfac/factors/capture.h"

#include <ATen/SavedTensorHooks.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/generated/Functions.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <utility>

namespace spillway::kfac {
namespace {

namespace ag = torch::autograd;

/// Saves a tensor as it is, whatever hooks of saved tensors are in force.
ag::SavedVariable saved_plainly(const at::Tensor& tensor) {
  const bool before = at::SavedTensorDefaultHooks::set_tracing(true);
  ag::SavedVariable saved(tensor, /*is_output=*/false);
  at::SavedTensorDefaultHooks::set_tracing(before);
  return saved;
}

/// The saved input of an operator, which K-FAC reads before the operator's backward does.
class SavedInput {
 public:
  SavedInput(ag::Node& node, ag::SavedVariable& saved) : node_(node), saved_(saved) {}
  bool has_hooks() const { return saved_.has_hooks(); }

  /// Unpacks the input. Where hooks do that, the operator finds the same tensor until pack_again().
  at::Tensor unpack() {
    const at::Tensor tensor = saved_.unpack(node_.getptr());
    if (has_hooks()) packed_ = std::exchange(saved_, saved_plainly(tensor));
    return tensor;
  }
  /// Lets the operator have what hooks packed, for another backward of the same graph.
  void pack_again() {
    if (packed_) saved_ = std::move(*packed_);
    packed_.reset();
  }

 private:
  ag::Node& node_;
  ag::SavedVariable& saved_;
  std::optional<ag::SavedVariable> packed_;
};

/// Shows a use of a layer before the operator's own backward.
class GradientTap final : public ag::FunctionPreHook {
 public:
  using Show = std::function<void(const at::Tensor& input, const at::Tensor& gradient)>;
  GradientTap(const void* owner, std::shared_ptr<SavedInput> input, Show show)
      : owner_(owner), input_(std::move(input)), show_(std::move(show)) {}
  const void* owner() const { return owner_; }
  ag::variable_list operator()(const ag::variable_list& gradients) override {
    if (!gradients[0].defined()) return gradients;
    const at::Tensor input = input_->unpack();  // as the operator would: a checkpoint may run its part here
    const at::NoGradGuard no_grad;
    show_(input, gradients[0]);
    return gradients;
  }

 private:
  const void* owner_;
  std::shared_ptr<SavedInput> input_;
  Show show_;
};

/// Ends what a GradientTap began, after the operator's own backward.
class PackAgain final : public ag::FunctionPostHook {
 public:
  explicit PackAgain(std::shared_ptr<SavedInput> input) : input_(std::move(input)) {}
  ag::variable_list operator()(const ag::variable_list& outputs, const ag::variable_list& /*inputs*/) override {
    input_->pack_again();
    return outputs;
  }

 private:
  std::shared_ptr<SavedInput> input_;
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

const at::TensorImpl* leaf_of(const ag::Node* node) {
  const auto* leaf = dynamic_cast<const ag::AccumulateGrad*>(node);
  return leaf ? leaf->variable.unsafeGetTensorImpl() : nullptr;
}

WeightUse weight_behind(const ag::Edge& edge) {
  constexpr int kMaxChain = 16;
  WeightUse use;
  ag::Node* node = edge.function.get();
  for (int hop = 0; node && hop < kMaxChain; ++hop) {
    if ((use.weight = leaf_of(node))) return use;
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

/// Returns the geometry of a convolution. The kernel's sizes are those that the weight's edge tells, because unpacking
/// the operator's own weight may run a checkpoint.
std::shared_ptr<Geometry> geometry_of(const ag::generated::ConvolutionBackward0& node) {
  const ag::Edge& edge = node.next_edge(1);
  const auto symbolic = edge.function->input_metadata(edge.input_nr).shape_as_dim_vector();
  const auto sizes = concrete({symbolic.begin(), symbolic.end()});
  return std::make_shared<Geometry>(Geometry{{sizes.begin() + 2, sizes.end()},
                                             concrete(node.stride),
                                             concrete(node.padding),
                                             concrete(node.dilation),
                                             node.groups.guard_int(__FILE__, __LINE__)});
}

/// An operator of the graph that uses a layer's weight.
struct Use {
  ag::Node* node;
  size_t layer;
  ag::SavedVariable* input;
  std::shared_ptr<Geometry> geometry;  ///< null for Linear

  Captured captured(const at::Tensor& x, const at::Tensor& gradient) const {
    if (geometry) return {layer, x, gradient, geometry.get()};
    return {layer, x.reshape({-1, x.size(-1)}), gradient.reshape({-1, gradient.size(-1)})};
  }
};

// Returns the use of `node`, a convolution.
std::optional<Use> use_of(ag::generated::ConvolutionBackward0& node, const WeightIndex& weights) {
  const auto layer = weights.find(weight_behind(node.next_edge(1)).weight);
  if (node.transposed || layer == weights.end()) return std::nullopt;
  return Use{&node, layer->second, &node.input_, geometry_of(node)};
}

// Returns the use of `node`, y = x Wᵀ (+ b). x may have any leading dimensions, which are all rows of the statistics.
// `transposed` is true when the operator is given Wᵀ. An operator that multiplies by W itself, as a tied decoder does,
// is no use, because A and G swap their roles in it.
std::optional<Use> use_of_product(ag::Node& node, ag::SavedVariable& input, uint32_t weight_edge, bool transposed,
                                  const WeightIndex& weights) {
  const WeightUse use = weight_behind(node.next_edge(weight_edge));
  const auto layer = weights.find(use.weight);
  if (layer == weights.end() || use.transposed != transposed) return std::nullopt;
  return Use{&node, layer->second, &input, nullptr};
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

/// Visits each node of the graph behind `roots` once.
template <class Visit>
void walk(at::TensorList roots, Visit visit) {
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
    visit(*node);
    for (const auto& edge : node->next_edges())
      if (edge.function && seen.insert(edge.function.get()).second) stack.push_back(edge.function.get());
  }
}

/// Returns true for functions that are no operators of LibTorch: those of Python are named so, as compiled graphs are.
bool is_opaque(std::string_view name) {
  return name.ends_with("Backward") || name.starts_with("torch::autograd::CppNode");
}

/// Notes the layers whose weights `node` is given, as they are or transposed, cast and the like.
void note_taken(const ag::Node& node, const std::string& name, const WeightIndex& weights, GraphLayers& met) {
  if (passes_a_weight_on(name)) return;
  for (const auto& edge : node.next_edges())
    if (const auto layer = weights.find(weight_behind(edge).weight); layer != weights.end())
      met.taken_by[layer->second] = name;
}

bool has_tap_of(ag::Node& node, const void* owner) {
  const auto& hooks = node.pre_hooks();
  return owner && std::any_of(hooks.begin(), hooks.end(), [&](const auto& hook) {
           const auto* tap = dynamic_cast<const GradientTap*>(hook.get());
           return tap && tap->owner() == owner;
         });
}

void add_tap(const Use& use, const void* owner, const Sink& sink) {
  if (has_tap_of(*use.node, owner)) return;
  const auto input = std::make_shared<SavedInput>(*use.node, *use.input);
  use.node->add_pre_hook(std::make_unique<GradientTap>(
      owner, input, [use, sink](const at::Tensor& x, const at::Tensor& gradient) { sink(use.captured(x, gradient)); }));
  if (input->has_hooks()) use.node->add_post_hook(std::make_unique<PackAgain>(input));
}

}  // namespace

GraphLayers install_capture_hooks(at::TensorList roots, const WeightIndex& weights, const Sink& sink,
                                  const CaptureManner& manner) {
  GraphLayers met;
  std::vector<ag::Node*> opaque;
  walk(roots, [&](ag::Node& node) {
    if (const auto use = use_of(&node, weights)) {
      add_tap(*use, manner.owner, sink);
      ++met.uses[use->layer];
      return;
    }
    const std::string name = node.name();
    note_taken(node, name, weights, met);
    if (is_opaque(name)) {
      met.opaque = name;
      opaque.push_back(&node);
    }
  });
  if (manner.meet_opaque)
    for (ag::Node* node : opaque) manner.meet_opaque(*node);
  return met;
}

std::vector<int64_t> count_positions(const at::Tensor& loss, const WeightIndex& weights, size_t layers) {
  std::vector<int64_t> positions(layers, 0);
  walk(loss, [&](ag::Node& node) {
    const auto use = use_of(&node, weights);
    if (!use) return;
    // The gradient of an operator has the sizes of its output: [rows, out], or [batch, out, *spatial].
    const auto symbolic = node.input_metadata(0).shape_as_dim_vector();
    const auto sizes = concrete({symbolic.begin(), symbolic.end()});
    const int64_t out = use->geometry ? sizes[1] : sizes.back();
    positions[use->layer] += c10::multiply_integers(sizes) / out;
  });
  return positions;
}

}  // namespace spillway::kfac
