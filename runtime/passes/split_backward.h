/// A backward pass in two parts: what earlier layers wait for, and the gradients of weights, at any time later.
///
/// Source: Qi et al., Zero Bubble Pipeline Parallelism (2024), section 2, which divides a layer's backward by hand.
/// Here the operators of the graph are divided: each runs twice, once for its input's gradient and once for its
/// weight's.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <utility>
#include <vector>

namespace spillway::runtime {

/// The graph of one forward pass, whose backward runs in two parts.
///
/// A weight's gradient waits where the weight has two dimensions or more, one operator alone reads it, and that
/// operator also has a gradient to compute for others. Operators of one operand between them, such as casts, transposes
/// and lookups in a table, are followed. The gradients of other leaves are computed in the first part. Both parts
/// together accumulate what a whole backward does, bit for bit, as long as operators compute each gradient by itself.
/// Thread: one at a time.
class SplitBackward {
 public:
  /// Finds what can wait behind `roots`, the tensors that backward begins at. `inputs` are leaves that are no weights.
  /// Cost: a few visits of each node. Throws c10::Error when a root has no graph.
  SplitBackward(std::vector<at::Tensor> roots, at::TensorList inputs);

  /// Runs the first part. `gradients` are those of the roots; undefined: 1, for a scalar. Afterwards the graph keeps
  /// what the second part reads and nothing else. Hooks of operators run in this part alone, those of tensors in both.
  void run_inputs(std::vector<at::Tensor> gradients);
  /// Runs the second part, and frees the graph.
  void run_weights();

  /// Returns the number of weights whose gradients wait.
  int64_t waiting() const;

 private:
  /// An operator whose weights' gradients wait.
  struct Product {
    std::shared_ptr<torch::autograd::Node> node;
    torch::autograd::edge_list weights;                  ///< ends of the graph that lead to them
    std::shared_ptr<std::vector<at::Tensor>> gradients;  ///< gradients of its outputs, once the first part has run
    std::vector<std::shared_ptr<torch::autograd::Node>> between;  ///< nodes from it to its weights
  };

  std::vector<at::Tensor> roots_;
  std::vector<Product> products_;
  torch::autograd::edge_list others_;  ///< the ends of the graph that the first part reaches
};

}  // namespace spillway::runtime
