#include "runtime/models/mlp.h"

#include <ATen/ATen.h>

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

}  // namespace spillway::runtime
