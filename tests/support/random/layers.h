// The builder of a RandomNet's layers.
#pragma once
#include <ATen/ATen.h>

#include <algorithm>
#include <random>
#include <vector>

#include "tests/support/random/net.h"

namespace spillway::testing {

/// A builder that knows the network so far and the sample that went through it. The next layer takes its shapes from
/// the sample.
class LayerBuilder {
 public:
  using Forward = RandomNet::Forward;
  LayerBuilder(RandomNet& net, uint64_t seed) : net_(net), random_(seed) {}

  void choose_input();
  /// Adds a layer that has weights: an embedding of tokens, a convolution, or a linear layer.
  void add_first_layer();
  /// Adds a random layer that fits.
  void add_layer();

  at::Tensor x;  ///< the sample
  std::vector<at::Tensor> outputs;

  bool coin() { return random_() % 2; }
  int64_t pick(std::initializer_list<int64_t> choices) { return choices.begin()[random_() % choices.size()]; }
  double fraction() { return 0.1 + static_cast<double>(random_() % 8) / 10; }
  bool is_tokens() const { return !x.is_floating_point(); }
  bool is_image() const { return x.dim() >= 4; }
  bool is_volume() const { return x.dim() == 5; }
  bool is_sequence() const { return x.dim() == 3; }
  int64_t features_dim() const { return is_image() ? 1 : x.dim() - 1; }
  int64_t features() const { return x.size(features_dim()); }
  int64_t edge() const { return is_image() ? *std::min_element(x.sizes().begin() + 2, x.sizes().end()) : 0; }
  /// Returns one value for each spatial dimension.
  std::vector<int64_t> spatial(int64_t value) const {
    return std::vector<int64_t>(static_cast<size_t>(x.dim()) - 2, value);
  }

  at::Tensor weight(std::vector<int64_t> sizes) {
    int64_t fan_in = 1;
    for (size_t i = 1; i < sizes.size(); ++i) fan_in *= sizes[i];
    return keep(at::randn(sizes) / std::sqrt(static_cast<double>(fan_in)));
  }
  at::Tensor keep(const at::Tensor& value) {
    net_.parameters_.push_back(value.detach().requires_grad_());
    return net_.parameters_.back();
  }
  at::Tensor maybe_bias(int64_t size) { return coin() ? keep(at::randn({size}) * 0.1) : at::Tensor(); }
  at::Tensor buffer(const at::Tensor& value) {
    net_.buffers_.push_back(value);
    return value;
  }
  /// Returns the index of an earlier output that `fits`, or -1.
  int64_t earlier(const std::function<bool(const at::Tensor&)>& fits) {
    std::vector<int64_t> found;
    for (size_t i = 0; i < outputs.size(); ++i)
      if (outputs[i].is_floating_point() && fits(outputs[i])) found.push_back(static_cast<int64_t>(i));
    return found.empty() ? -1 : found[random_() % found.size()];
  }
  /// Returns an embedding of the input's tokens. Its gradient is sparse, or not.
  at::Tensor table(bool sparse) {
    auto& tables = sparse ? net_.sparse_tables_ : net_.parameters_;
    tables.push_back(at::randn({net_.vocabulary_, 32}).requires_grad_());
    return tables.back();
  }
  void needs_one_derivative_only() { net_.twice_differentiable_ = false; }
  Forward layer_to_share();
  Forward activated(const Forward& forward);

 private:
  void add(const char* name, Forward forward);

  RandomNet& net_;
  std::mt19937_64 random_;
};

}  // namespace spillway::testing
