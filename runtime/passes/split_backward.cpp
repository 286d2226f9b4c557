#include "runtime/passes/split_backward.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>

namespace spillway::runtime {
namespace {

namespace ag = torch::autograd;
using NodePtr = std::shared_ptr<ag::Node>;

/// Keeps the gradients that an operator's backward is given.
class Keep final : public ag::FunctionPreHook {
 public:
  explicit Keep(std::shared_ptr<std::vector<at::Tensor>> kept) : kept_(std::move(kept)) {}
  ag::variable_list operator()(const ag::variable_list& gradients) override {
    *kept_ = gradients;
    return gradients;
  }

 private:
  const std::shared_ptr<std::vector<at::Tensor>> kept_;
};

/// The nodes of a graph, each after those that read it.
struct Graph {
  std::vector<NodePtr> nodes;                                ///< readers come first
  std::unordered_map<const ag::Node*, int> readers;          ///< edges that lead to a node, and roots
  std::unordered_map<const ag::Node*, NodePtr> last_reader;  ///< a node with an edge to it
};

void visit(const NodePtr& root, Graph& graph, std::unordered_set<const ag::Node*>& seen) {
  struct Visit {
    NodePtr node;
    size_t next = 0;
  };
  std::vector<Visit> open;
  if (seen.insert(root.get()).second) open.push_back({root});
  while (!open.empty()) {
    Visit& at = open.back();
    if (at.next == at.node->next_edges().size()) {
      graph.nodes.push_back(std::move(at.node));
      open.pop_back();
      continue;
    }
    const NodePtr reader = at.node, next = reader->next_edge(at.next++).function;
    if (!next) continue;
    ++graph.readers[next.get()];
    graph.last_reader[next.get()] = reader;
    if (seen.insert(next.get()).second) open.push_back({next});
  }
}

Graph graph_behind(const std::vector<at::Tensor>& roots) {
  Graph graph;
  std::unordered_set<const ag::Node*> seen;
  for (const at::Tensor& root : roots) {
    TORCH_CHECK(root.grad_fn(), "[backward] a root has no graph");
    ++graph.readers[root.grad_fn().get()];
    visit(root.grad_fn(), graph, seen);
  }
  std::reverse(graph.nodes.begin(), graph.nodes.end());
  return graph;
}

bool is_end(const ag::Node& node) {
  return std::none_of(node.next_edges().begin(), node.next_edges().end(),
                      [](const ag::Edge& e) { return e.is_valid(); });
}

/// A weight and the operator that reads it.
struct Use {
  NodePtr weight, product;
  std::vector<NodePtr> between;
};

/// Returns the uses of weights that may wait, as far as the weights tell.
std::vector<Use> single_uses(const Graph& graph, at::TensorList inputs) {
  std::vector<Use> uses;
  std::unordered_set<const at::TensorImpl*> no_weights;
  for (const at::Tensor& input : inputs) no_weights.insert(input.unsafeGetTensorImpl());
  for (const NodePtr& node : graph.nodes) {
    const auto* leaf = dynamic_cast<const ag::AccumulateGrad*>(node.get());
    if (!leaf || leaf->variable.dim() < 2 || no_weights.contains(leaf->variable.unsafeGetTensorImpl())) continue;
    Use use{.weight = node, .product = node, .between = {}};
    do {
      if (use.product != node) use.between.push_back(use.product);
      const auto reader = graph.last_reader.find(use.product.get());
      const bool is_alone = graph.readers.at(use.product.get()) == 1 && reader != graph.last_reader.end();
      use.product = is_alone ? reader->second : nullptr;
    } while (use.product && use.product->num_outputs() == 1);
    if (use.product) uses.push_back(std::move(use));
  }
  return uses;
}

/// Takes out the uses whose operator the first part would not run at all: it computes its weights' gradients there.
void keep_those_that_wait(std::vector<Use>& uses, const Graph& graph) {
  std::unordered_set<const ag::Node*> candidates, products, needed, too_early;
  for (const Use& use : uses) {
    candidates.insert(use.weight.get());
    products.insert(use.product.get());
  }
  const std::vector<NodePtr> ends_first(graph.nodes.rbegin(), graph.nodes.rend());
  for (const NodePtr& node : ends_first) {
    const auto& edges = node->next_edges();
    const bool is_needed = is_end(*node) ? !candidates.contains(node.get())
                                         : std::any_of(edges.begin(), edges.end(), [&](const ag::Edge& edge) {
                                             return edge.is_valid() && needed.contains(edge.function.get());
                                           });
    const bool is_too_early = !is_needed && products.contains(node.get());
    if (is_too_early) too_early.insert(node.get());
    if (is_needed || is_too_early) needed.insert(node.get());
  }
  std::erase_if(uses, [&](const Use& use) { return too_early.contains(use.product.get()); });
}

}  // namespace

SplitBackward::SplitBackward(std::vector<at::Tensor> roots, at::TensorList inputs) : roots_(std::move(roots)) {
  const Graph graph = graph_behind(roots_);
  std::vector<Use> uses = single_uses(graph, inputs);
  keep_those_that_wait(uses, graph);
  std::unordered_set<const ag::Node*> waiting;
  std::map<const ag::Node*, size_t> product_of;
  for (Use& use : uses) {
    waiting.insert(use.weight.get());
    const auto [known, is_new] = product_of.try_emplace(use.product.get(), products_.size());
    if (is_new) products_.push_back({use.product, {}, std::make_shared<std::vector<at::Tensor>>(), {}});
    Product& product = products_[known->second];
    product.weights.emplace_back(use.weight, 0);
    product.between.insert(product.between.end(), use.between.begin(), use.between.end());
  }
  for (const NodePtr& node : graph.nodes)
    if (is_end(*node) && !waiting.contains(node.get())) others_.emplace_back(node, 0);
}

int64_t SplitBackward::waiting() const {
  int64_t count = 0;
  for (const Product& product : products_) count += std::ssize(product.weights);
  return count;
}

void SplitBackward::run_inputs(std::vector<at::Tensor> gradients) {
  ag::edge_list begin;
  for (size_t i = 0; i < roots_.size(); ++i) {
    begin.emplace_back(roots_[i].grad_fn(), roots_[i].output_nr());
    if (!gradients[i].defined()) gradients[i] = at::ones_like(roots_[i]);
  }
  for (const Product& product : products_) product.node->add_pre_hook(std::make_unique<Keep>(product.gradients));
  if (!others_.empty())
    ag::Engine::get_default_engine().execute(begin, gradients, /*keep_graph=*/!products_.empty(),
                                             /*create_graph=*/false, /*accumulate_grad=*/true, others_);
  std::unordered_set<const ag::Node*> kept;
  for (const Product& product : products_) {
    product.node->pre_hooks().clear();
    kept.insert(product.node.get());
    for (const NodePtr& node : product.between) kept.insert(node.get());
  }
  for (const NodePtr& node : graph_behind(roots_).nodes)
    if (!kept.contains(node.get())) node->release_variables();
  roots_.clear();
  others_.clear();
}

void SplitBackward::run_weights() {
  for (Product& product : products_) {
    ag::edge_list begin;
    std::vector<at::Tensor> gradients;
    for (size_t i = 0; i < product.gradients->size(); ++i)
      if ((*product.gradients)[i].defined()) {
        begin.emplace_back(product.node, i);
        gradients.push_back((*product.gradients)[i]);
      }
    product.gradients->clear();
    if (!begin.empty())
      ag::Engine::get_default_engine().execute(begin, gradients, /*keep_graph=*/false, /*create_graph=*/false,
                                               /*accumulate_grad=*/true, product.weights);
    product.node.reset();
  }
  products_.clear();
}

}  // namespace spillway::runtime
