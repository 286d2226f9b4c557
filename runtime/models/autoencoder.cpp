#include "runtime/models/autoencoder.h"

#include <ATen/ATen.h>
#include <torch/nn/init.h>

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace spillway::runtime {

void AutoencoderOptions::validate() const {
  auto at_least_one = [](const char* field, int64_t value) {
    if (value < 1) throw BadRequest(str("AutoencoderOptions: ", field, " is ", value, "; allowed is 1 or more"));
  };
  at_least_one("input", input);
  at_least_one("hidden", hidden);
  at_least_one("layers", layers);
  at_least_one("code", code);
}

AutoencoderImpl::AutoencoderImpl(const AutoencoderOptions& options) : options_(options) {
  options.validate();
  std::vector<int64_t> widths{options.input};
  for (int64_t i = 0, width = options.hidden; i < options.layers; ++i, width /= 2)
    widths.push_back(std::max<int64_t>(width, 1));
  std::vector<int64_t> mirrored(widths.rbegin(), widths.rend());
  widths.push_back(options.code);
  widths.insert(widths.end(), mirrored.begin(), mirrored.end());
  for (size_t i = 0; i + 1 < widths.size(); ++i) {
    layers_.push_back(register_module(str("linear", i), torch::nn::Linear(widths[i], widths[i + 1])));
    torch::nn::init::xavier_uniform_(layers_.back()->weight);
    torch::nn::init::zeros_(layers_.back()->bias);
  }
}

at::Tensor AutoencoderImpl::forward(at::Tensor x) {
  TORCH_CHECK(x.dim() == 2 && x.size(1) == options_.input, "Autoencoder: input has shape ", x.sizes(),
              "; needed is [B, ", options_.input, "]");
  const size_t code = layers_.size() / 2 - 1;
  for (size_t i = 0; i < layers_.size(); ++i) {
    x = layers_[i]->forward(x);
    if (i != code && i + 1 < layers_.size()) x = at::tanh(x);
  }
  return x;
}

std::vector<Part> AutoencoderImpl::parts() const {
  const size_t code = layers_.size() / 2 - 1;
  std::vector<Part> all;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const bool is_linear = i == code || i + 1 == layers_.size();
    auto run = [layer = layers_[i], is_first = i == 0, is_linear](const auto& inputs, const Batch& batch) mutable {
      at::Tensor x = layer->forward(is_first ? batch.input : inputs[0]);
      return is_linear ? x : at::tanh(x);
    };
    const std::string name = str("linear", i);
    all.push_back({.name = name, .reads = part_before(i), .modules = {name}, .run = std::move(run)});
  }
  return all;
}

}  // namespace spillway::runtime
