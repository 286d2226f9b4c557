#include "runtime/models/mlp.h"

#include <ATen/ATen.h>

#include <utility>

#include "core/error.h"

namespace spillway::runtime {

void MlpOptions::validate() const {
  auto at_least = [](int64_t least, const char* field, int64_t value) {
    if (value < least) throw BadRequest(str("MlpOptions: ", field, " is ", value, "; allowed is ", least, " or more"));
  };
  at_least(1, "input", input);
  at_least(1, "hidden", hidden);
  at_least(0, "layers", layers);
  at_least(1, "classes", classes);
}

MlpImpl::MlpImpl(const MlpOptions& options) : options_(options) {
  options.validate();
  int64_t width = options.input;
  for (int64_t i = 0; i <= options.layers; ++i) {
    const int64_t next = i < options.layers ? options.hidden : options.classes;
    layers_.push_back(register_module(str("linear", i), torch::nn::Linear(width, next)));
    width = next;
  }
}

at::Tensor MlpImpl::forward(at::Tensor x) {
  TORCH_CHECK(x.dim() == 2 && x.size(1) == options_.input, "Mlp: input has shape ", x.sizes(), "; needed is [B, ",
              options_.input, "]");
  for (size_t i = 0; i < layers_.size(); ++i) {
    x = layers_[i]->forward(x);
    if (i + 1 < layers_.size()) at::relu_(x);
  }
  return x;
}

std::vector<Part> MlpImpl::parts() const {
  std::vector<Part> all;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const bool is_last = i + 1 == layers_.size();
    auto run = [layer = layers_[i], is_first = i == 0, is_last](const auto& inputs, const Batch& batch) mutable {
      at::Tensor x = layer->forward(is_first ? batch.input : inputs[0]);
      return is_last ? x : at::relu_(x);
    };
    const std::string name = str("linear", i);
    all.push_back({.name = name, .reads = part_before(i), .modules = {name}, .run = std::move(run)});
  }
  return all;
}

}  // namespace spillway::runtime
