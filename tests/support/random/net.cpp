#include "tests/support/random/net.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "core/error.h"
#include "tests/support/random/layers.h"

namespace spillway::testing {

void LayerBuilder::choose_input() {
  std::vector<int64_t>& sizes = net_.input_sizes_;
  switch (random_() % 8) {
    case 0:
    case 1:
      sizes = {pick({4, 8}), pick({6, 8}), pick({6, 8}), 8};
      break;
    case 2:
    case 3:
    case 4:
      sizes = {pick({4, 8}), pick({12, 16}), pick({12, 15})};
      break;
    case 5:
      sizes = {pick({16, 40}), pick({32, 48})};
      break;
    case 6:
      sizes = {pick({16, 40})};
      net_.vocabulary_ = pick({50, 400});
      break;
    default:
      sizes = {pick({64, 256})};
  }
  x = net_.input(2);
  outputs = {x};
  net_.description_ = spillway::str("input ", x.sizes());
}

RandomNet::RandomNet(uint64_t seed, int64_t max_layers) {
  at::NoGradGuard no_grad;
  std::mt19937_64 random(seed);
  const int64_t count = std::min<int64_t>(max_layers, 3 + static_cast<int64_t>(random() % 12));
  LayerBuilder builder(*this, random());
  builder.choose_input();
  builder.add_first_layer();
  while (layers() < count) builder.add_layer();
}

at::Tensor RandomNet::input(int64_t batch) const {
  auto sizes = input_sizes_;
  sizes.insert(sizes.begin(), batch);
  return vocabulary_ ? at::randint(0, vocabulary_, sizes, at::kLong) : at::randn(sizes);
}

at::Tensor RandomNet::forward(const at::Tensor& input, ForwardPass& pass) const {
  pass.outputs = {input};
  at::Tensor x = input;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    const bool skipped = i > 0 && static_cast<int64_t>(i) == pass.skipped_layer && layer.input == layer.output;
    if (!skipped) x = layer.forward(x, pass);
    if (static_cast<int64_t>(i) == pass.after_layer) pass.then(x);
    pass.outputs.push_back(x);
  }
  return x;
}

}  // namespace spillway::testing
