// A small random network of LibTorch operators, drawn from a seed.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace spillway::testing {

/// What one forward pass carries along.
struct ForwardPass {
  bool training = true;
  /// Once layer `after_layer` has run, this is done with its output.
  int64_t after_layer = -1;
  std::function<void(at::Tensor&)> then = nullptr;
  /// A layer that is left out, if it is not the first and its output has its input's shape.
  int64_t skipped_layer = -1;
  std::vector<at::Tensor> outputs = {};  ///< of the layers so far, the input first
};

/// Layers of a random mix on a random input: a volume, an image, a sequence of vectors or of tokens, or vectors. Equal
/// seeds give equal networks; with a smaller limit, the first layers of the same one. Initial values, and the inputs,
/// come from LibTorch's default generator, so seed that too.
class RandomNet {
 public:
  RandomNet(uint64_t seed, int64_t max_layers);

  at::Tensor input(int64_t batch) const;
  at::Tensor forward(const at::Tensor& input, ForwardPass& pass) const;

  /// Dense ones; an optimizer's.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  /// Embeddings whose gradients are sparse.
  const std::vector<at::Tensor>& sparse_tables() const { return sparse_tables_; }
  const std::vector<at::Tensor>& buffers() const { return buffers_; }
  int64_t layers() const { return static_cast<int64_t>(layers_.size()); }
  /// Every layer's backward has a derivative of its own.
  bool twice_differentiable() const { return twice_differentiable_; }
  /// "input (2, 8, 12, 12) conv norm …"
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
  int64_t vocabulary_ = 0;  // 0: the input is no tokens
  std::vector<at::Tensor> parameters_, sparse_tables_, buffers_;
  bool twice_differentiable_ = true;
  std::string description_;
};

}  // namespace spillway::testing
