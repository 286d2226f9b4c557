#include "kfac/factors/capture.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/generated/Functions.h>

#include <array>
#include <memory>
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

class Walk {
 public:
  Walk(const WeightIndex& weights, const Sink& sink, std::vector<int64_t>* uses)
      : weights_(weights), sink_(sink), uses_(uses) {}

  void visit(ag::Node* node) {
    if (auto* conv = dynamic_cast<ag::generated::ConvolutionBackward0*>(node)) {
      if (!conv->transposed) tap_convolution(*conv);
    } else if (auto* addmm = dynamic_cast<ag::generated::AddmmBackward0*>(node)) {
      tap_product(*addmm, addmm->mat1_, 2, /*transposed=*/true);
    } else if (auto* mm = dynamic_cast<ag::generated::MmBackward0*>(node)) {
      tap_product(*mm, mm->self_, 1, /*transposed=*/true);
    } else if (auto* bmm = dynamic_cast<ag::generated::BmmBackward0*>(node)) {
      tap_product(*bmm, bmm->self_, 1, /*transposed=*/true);
    } else if (auto* linear = dynamic_cast<ag::generated::LinearBackward0*>(node)) {
      tap_product(*linear, linear->input_, 1, /*transposed=*/false);
    }
  }

  int64_t taps() const { return taps_; }

 private:
  void tap_convolution(ag::generated::ConvolutionBackward0& node) {
    const auto layer = weights_.find(weight_behind(node.next_edge(1)).weight);
    if (layer == weights_.end()) return;
    const auto geometry = geometry_of(node, node.weight_.unpack(node.getptr()));
    add(node, layer->second, [&node, geometry, index = layer->second, sink = sink_](const at::Tensor& gradient) {
      sink({index, node.input_.unpack(node.getptr()), gradient, geometry.get()});
    });
  }

  // Hooks y = x Wᵀ (+ b). x may have any leading dimensions, which are all rows of the statistics. `transposed` is true
  // when the operator is given Wᵀ. An operator that multiplies by W itself, as a tied decoder does, is not hooked,
  // because A and G swap their roles in it.
  void tap_product(ag::Node& node, ag::SavedVariable& input, uint32_t weight_edge, bool transposed) {
    const WeightUse use = weight_behind(node.next_edge(weight_edge));
    const auto layer = weights_.find(use.weight);
    if (layer == weights_.end() || use.transposed != transposed) return;
    add(node, layer->second, [&node, &input, index = layer->second, sink = sink_](const at::Tensor& gradient) {
      const auto x = input.unpack(node.getptr());
      sink({index, x.reshape({-1, x.size(-1)}), gradient.reshape({-1, gradient.size(-1)}), nullptr});
    });
  }

  void add(ag::Node& node, size_t layer, std::function<void(const at::Tensor&)> read) {
    node.add_pre_hook(std::make_unique<GradientTap>([read = std::move(read)](const at::Tensor& gradient) {
      at::NoGradGuard no_grad;
      read(gradient);
    }));
    ++taps_;
    if (uses_) ++(*uses_)[layer];
  }

  const WeightIndex& weights_;
  const Sink& sink_;
  std::vector<int64_t>* uses_;
  int64_t taps_ = 0;
};

}  // namespace

int64_t install_capture_hooks(const at::Tensor& loss, const WeightIndex& weights, const Sink& sink,
                              std::vector<int64_t>* uses) {
  const auto& root = loss.grad_fn();
  TORCH_CHECK(root, "[kfac.tap] the loss has no graph: watch it after forward and before backward");
  Walk walk(weights, sink, uses);
  std::vector<ag::Node*> stack{root.get()};
  std::unordered_set<ag::Node*> seen{root.get()};
  while (!stack.empty()) {
    auto* node = stack.back();
    stack.pop_back();
    walk.visit(node);
    for (const auto& edge : node->next_edges())
      if (edge.function && seen.insert(edge.function.get()).second) stack.push_back(edge.function.get());
  }
  return walk.taps();
}

}  // namespace spillway::kfac
