/// A multilayer perceptron: the smallest model that every part of the runtime can be tried on.
#pragma once
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <vector>

#include "runtime/models/part.h"

namespace spillway::runtime {

struct MlpOptions {
  int64_t input = 32;    ///< features; ≥ 1
  int64_t hidden = 64;   ///< units of each hidden layer; ≥ 1
  int64_t layers = 2;    ///< hidden layers; ≥ 0 (0: a linear model)
  int64_t classes = 10;  ///< outputs: class scores, or regressed values; ≥ 1

  /// Throws BadRequest naming the field, its value and the allowed range.
  void validate() const;
};

/// The network maps [B, input] to raw scores [B, classes]: `layers` × (Linear → ReLU), Linear. Cross entropy makes it a
/// classifier, a squared error a regressor.
class MlpImpl : public torch::nn::Module {
 public:
  /// Throws BadRequest from options.validate().
  explicit MlpImpl(const MlpOptions& options = {});
  /// Throws c10::Error when the input is not [B, input].
  at::Tensor forward(at::Tensor x);
  /// Returns a part for each linear layer, with its ReLU.
  std::vector<Part> parts() const;
  const MlpOptions& options() const noexcept { return options_; }

 private:
  MlpOptions options_;
  std::vector<torch::nn::Linear> layers_;
};
TORCH_MODULE(Mlp);

}  // namespace spillway::runtime
