#include "kfac/factors/capture.h"

#include <ATen/SavedTensorHooks.h>
#include <torch/csrc/autograd/generated/Functions.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "kfac/factors/own_operators.h"
#include "kfac/factors/weight_use.h"

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
    at::Tensor tensor = saved_.unpack(node_.getptr());
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
    const OwnOperators own;
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

std::vector<int64_t> concrete(const std::vector<c10::SymInt>& symbolic) {
  std::vector<int64_t> values;
  for (const auto& value : symbolic) values.push_back(value.guard_int(__FILE__, __LINE__));
  return values;
}

/// Returns the geometry of a convolution. The kernel's sizes are those that the weight's edge tells, because unpacking
/// the operator's own weight may run a checkpoint.
std::shared_ptr<Geometry> geometry_of(const ag::generated::ConvolutionBackward0& node) {
  const auto sizes = output_sizes(node.next_edge(1));
  return std::make_shared<Geometry>(Geometry{{sizes.begin() + 2, sizes.end()},
                                             concrete(node.stride),
                                             concrete(node.padding),
                                             concrete(node.dilation),
                                             node.groups.guard_int(__FILE__, __LINE__)});
}

/// Returns a tensor of any leading dimensions as [rows, features], and a sparse one as a dense one. Returns an
/// undefined tensor for a nested one, which has no such form.
at::Tensor as_rows(const at::Tensor& tensor) {
  if (tensor.is_nested() || tensor.layout() == at::kJagged) return {};
  const at::Tensor dense = tensor.layout() == at::kStrided ? tensor : tensor.to_dense();
  return dense.reshape({-1, dense.size(-1)});
}

/// An operator of the graph that uses a layer's weight.
struct Use {
  ag::Node* node;
  size_t layer;
  ag::SavedVariable* input;
  std::shared_ptr<Geometry> geometry;  ///< null for Linear

  Captured captured(const at::Tensor& x, const at::Tensor& gradient) const {
    if (geometry) return {layer, x, gradient, geometry.get()};
    return {layer, as_rows(x), as_rows(gradient)};
  }
};

// Returns the use of `node`, a convolution. One that is given the weight turned or in other sizes is none.
std::optional<Use> use_of(ag::generated::ConvolutionBackward0& node, const WeightIndex& weights) {
  const WeightUse use = weight_behind(node.next_edge(1));
  const auto layer = weights.find(use.weight);
  if (node.transposed || layer == weights.end() || !use.is_in_order()) return std::nullopt;
  return Use{&node, layer->second, &node.input_, geometry_of(node)};
}

// Returns the use of `node`, y = x Wᵀ (+ b), that is given W, or Wᵀ. x may have any leading dimensions, which are all
// rows of the statistics. An operator that multiplies by the other one of them, as a tied decoder does, is no use,
// because A and G swap their roles in it.
std::optional<Use> use_of_product(ag::Node& node, ag::SavedVariable& input, uint32_t weight_edge,
                                  bool (WeightUse::*has_form)() const, const WeightIndex& weights) {
  const WeightUse use = weight_behind(node.next_edge(weight_edge));
  const auto layer = weights.find(use.weight);
  if (layer == weights.end() || !(use.*has_form)()) return std::nullopt;
  return Use{&node, layer->second, &input, nullptr};
}

/// True for α x Wᵀ + β b whose factors are 1. Others scale what the statistics would be made of.
bool has_plain_factors(const ag::generated::AddmmBackward0& node) {
  return node.alpha.equal(1) && (node.beta.equal(1) || !node.next_edge(0).is_valid());
}

std::optional<Use> use_of(ag::Node* node, const WeightIndex& weights) {
  const auto transposed = &WeightUse::is_transposed_matrix;
  if (auto* conv = dynamic_cast<ag::generated::ConvolutionBackward0*>(node)) return use_of(*conv, weights);
  if (auto* addmm = dynamic_cast<ag::generated::AddmmBackward0*>(node))
    return has_plain_factors(*addmm) ? use_of_product(*addmm, addmm->mat1_, 2, transposed, weights) : std::nullopt;
  if (auto* mm = dynamic_cast<ag::generated::MmBackward0*>(node))
    return use_of_product(*mm, mm->self_, 1, transposed, weights);
  if (auto* bmm = dynamic_cast<ag::generated::BmmBackward0*>(node))
    return use_of_product(*bmm, bmm->self_, 1, transposed, weights);
  if (auto* linear = dynamic_cast<ag::generated::LinearBackward0*>(node))
    return use_of_product(*linear, linear->input_, 1, &WeightUse::is_in_order, weights);
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
    const auto sizes = output_sizes({node.getptr(), 0});
    const int64_t out = use->geometry ? sizes[1] : sizes.back();
    positions[use->layer] += c10::multiply_integers(sizes) / out;
  });
  return positions;
}

}  // namespace spillway::kfac
