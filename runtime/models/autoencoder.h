/// A deep autoencoder, the classic test of second-order methods because plain gradients train it badly.
#pragma once
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <vector>

#include "runtime/models/part.h"

namespace spillway::runtime {

struct AutoencoderOptions {
  int64_t input = 784;   ///< values of a vector, 0 … 1; ≥ 1
  int64_t hidden = 400;  ///< units of the first hidden layer; each further one has half as many; ≥ 1
  int64_t layers = 5;    ///< hidden layers before the code, and as many after it; ≥ 1
  int64_t code = 6;      ///< values that a vector is reduced to; ≥ 1

  /// Throws BadRequest naming the field, its value and the allowed range.
  void validate() const;
};

/// The network maps [B, input] to logits [B, input] of the reconstruction. The encoder's hidden layers are Linear →
/// tanh, the code is linear, and the decoder mirrors the encoder. Weights start uniform with variance 2/(in + out),
/// biases at 0 (Glorot & Bengio 2010). The defaults are the 784-400-200-100-50-25-6 of Hinton & Salakhutdinov 2006 for
/// images of curves. Martens 2010 and Martens & Grosse 2015 (K-FAC, §13) measure on it.
class AutoencoderImpl : public torch::nn::Module {
 public:
  /// Throws BadRequest from options.validate().
  explicit AutoencoderImpl(const AutoencoderOptions& options = {});
  /// Throws c10::Error when the input is not [B, input].
  at::Tensor forward(at::Tensor x);
  /// Returns a part for each linear layer, with its tanh.
  std::vector<Part> parts() const;
  const AutoencoderOptions& options() const noexcept { return options_; }

 private:
  AutoencoderOptions options_;
  std::vector<torch::nn::Linear> layers_;
};
TORCH_MODULE(Autoencoder);

}  // namespace spillway::runtime
