// A small random network of LibTorch operators, drawn from a seed.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace spillway::testing {

/// The options and results of one forward pass.
struct ForwardPass {
  bool training = true;
  /// The layer whose output is passed to `then` once the layer has run.
  int64_t after_layer = -1;
  std::function<void(at::Tensor&)> then = nullptr;
  /// The layer that is left out, if it is not the first and its output has its input's shape.
  int64_t skipped_layer = -1;
  std::vector<at::Tensor> outputs = {};  ///< outputs of the layers so far, the input first
};

/// A network with a random mix of layers on a random input: a volume, an image, a sequence of vectors or of tokens, or
/// vectors. Equal seeds give equal networks. With a smaller limit, a network has the first layers of the larger one.
/// Initial values and inputs come from LibTorch's default generator, so seed that too.
class RandomNet {
 public:
  RandomNet(uint64_t seed, int64_t max_layers);

  at::Tensor input(int64_t batch) const;
  at::Tensor forward(const at::Tensor& input, ForwardPass& pass) const;

  /// Returns the dense parameters, which an optimizer updates.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  /// Returns the embeddings whose gradients are sparse.
  const std::vector<at::Tensor>& sparse_tables() const { return sparse_tables_; }
  const std::vector<at::Tensor>& buffers() const { return buffers_; }
  int64_t layers() const { return static_cast<int64_t>(layers_.size()); }
  /// Returns true when every layer's backward has a derivative of its own.
  bool twice_differentiable() const { return twice_differentiable_; }
  /// Returns a text like "input (2, 8, 12, 12) conv norm …".
  const std::string& description() const { return description_; }

 private:
  friend class LayerBuilder;
  using Forward = std::function<at::Tensor(const at::Tensor&, ForwardPass&)>;
  struct Layer {
    Forward forward;
    std::vector<int64_t> input, output;  // sizes
  };

  std::vector<Layer> layers_;
  std::vector<int64_t> input_sizes_;
  int64_t vocabulary_ = 0;  // 0: the input has no tokens
  std::vector<at::Tensor> parameters_, sparse_tables_, buffers_;
  bool twice_differentiable_ = true;
  std::string description_;
};

}  // namespace spillway::testing
