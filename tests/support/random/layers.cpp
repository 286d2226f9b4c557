// The layers that a RandomNet may have. A new one needs a function and a line in the table.
#include "tests/support/random/layers.h"

#include <array>
#include <cmath>

#include "core/error.h"

namespace spillway::testing {
namespace {

using at::Tensor;
using B = LayerBuilder;
using Forward = LayerBuilder::Forward;
using Pass = ForwardPass;

// Each function makes a layer for the builder's sample, or none when the layer does not fit.

Forward convolution(B& b) {
  if (!b.is_image()) return {};
  const int64_t groups = b.features() % 2 == 0 && b.coin() ? 2 : 1, k = b.pick({1, 3});
  auto sizes = b.spatial(k);
  const int64_t out = b.pick({4, 8, 12});
  sizes.insert(sizes.begin(), {out, b.features() / groups});
  Tensor w = b.weight(sizes), bias = b.maybe_bias(out);
  const bool strides = b.edge() >= 6 && b.coin();
  // Without AVX-512 oneDNN writes behind its scratch in the backward of channels-last 1×1 kernels that stride over
  // channels which are no multiple of 8, also in stock LibTorch.
  const bool is_safe = k > 1 || b.features() / groups % 8 == 0;
  const auto stride = b.spatial(strides && is_safe ? 2 : 1), padding = b.spatial(k / 2);
  const auto dilation = b.spatial(1);
  return b.activated([=](const Tensor& x, Pass&) {
    return x.dim() == 5 ? at::conv3d(x, w, bias, stride, padding, dilation, groups)
                        : at::conv2d(x, w, bias, stride, padding, dilation, groups);
  });
}

Forward transposed_convolution(B& b) {
  if (!b.is_image() || b.edge() > 6) return {};
  auto sizes = b.spatial(2);
  sizes.insert(sizes.begin(), {b.features(), 4});
  Tensor w = b.weight(sizes);
  const auto stride = b.spatial(2);
  return b.activated([=](const Tensor& x, Pass&) {
    return x.dim() == 5 ? at::conv_transpose3d(x, w, {}, stride) : at::conv_transpose2d(x, w, {}, stride);
  });
}

Forward linear(B& b) {
  if (b.is_image()) return {};
  const int64_t out = b.pick({16, 32, 64});
  Tensor w = b.weight({out, b.features()}), bias = b.maybe_bias(out);
  return b.activated([=](const Tensor& x, Pass&) { return at::linear(x, w, bias); });
}

Forward embedding(B& b) {
  const bool sparse = b.coin();
  if (sparse) b.needs_one_derivative_only();
  return
      [table = b.table(sparse), sparse](const Tensor& x, Pass&) { return at::embedding(table, x, -1, false, sparse); };
}

Forward batch_norm(B& b) {
  if (b.is_sequence()) return {};
  const int64_t c = b.features();
  Tensor w = b.keep(at::ones({c})), bias = b.keep(at::zeros({c}));
  Tensor mean = b.buffer(at::zeros({c})), variance = b.buffer(at::ones({c}));
  return b.activated([=](const Tensor& x, Pass& pass) {
    return at::batch_norm(x, w, bias, mean, variance, pass.training, 0.1, 1e-5, false);
  });
}

Forward instance_norm(B& b) {
  if (!b.is_image() || b.edge() < 2) return {};
  Tensor w = b.keep(at::ones({b.features()})), bias = b.keep(at::zeros({b.features()}));
  return b.activated([=](const Tensor& x, Pass&) {
    return at::instance_norm(x, w, bias, {}, {}, /*use_input_stats=*/true, 0.1, 1e-5, false);
  });
}

Forward group_norm(B& b) {
  if (!b.is_image() || b.features() % 2) return {};
  Tensor w = b.keep(at::ones({b.features()})), bias = b.keep(at::zeros({b.features()}));
  return b.activated([=](const Tensor& x, Pass&) { return at::group_norm(x, 2, w, bias); });
}

Forward layer_norm(B& b) {
  if (b.is_image()) return {};
  const std::vector<int64_t> sizes{b.features()};
  Tensor w = b.keep(at::ones(sizes)), bias = b.keep(at::zeros(sizes));
  return b.activated([=](const Tensor& x, Pass&) { return at::layer_norm(x, sizes, w, bias); });
}

Forward dropout(B& b) {
  const double p = b.fraction() / 2;
  if (b.is_image() && b.coin())
    return [=](const Tensor& x, Pass& pass) { return at::feature_dropout(x, p, pass.training); };
  return [=](const Tensor& x, Pass& pass) { return at::dropout(x, p, pass.training); };
}

Forward residual(B& b) {
  const int64_t other = b.earlier([&](const Tensor& t) { return t.sizes() == b.x.sizes(); });
  if (other < 0) return {};
  return b.activated([=](const Tensor& x, Pass& pass) { return x + pass.outputs[static_cast<size_t>(other)]; });
}

Forward gated(B& b) {
  const int64_t other = b.earlier([&](const Tensor& t) { return t.sizes() == b.x.sizes(); });
  if (other < 0) return {};
  return [=](const Tensor& x, Pass& pass) { return x * pass.outputs[static_cast<size_t>(other)].sigmoid(); };
}

Forward concatenation(B& b) {
  const int64_t dim = b.features_dim();
  const int64_t other = b.earlier([&](const Tensor& t) {
    if (t.dim() != b.x.dim() || t.size(dim) + b.features() > 64) return false;
    for (int64_t d = 0; d < t.dim(); ++d)
      if (d != dim && t.size(d) != b.x.size(d)) return false;
    return true;
  });
  if (other < 0) return {};
  return b.activated([=](const Tensor& x, Pass& pass) {
    return at::cat(std::vector<Tensor>{x, pass.outputs[static_cast<size_t>(other)]}, dim);
  });
}

Forward pool(B& b) {
  if (b.edge() < 4) return {};
  const auto two = b.spatial(2);
  const bool largest = b.coin();
  return [=](const Tensor& x, Pass&) {
    if (x.dim() == 5) return largest ? at::max_pool3d(x, two) : at::avg_pool3d(x, two);
    return largest ? at::max_pool2d(x, two) : at::avg_pool2d(x, two);
  };
}

Forward upsampling(B& b) {
  if (!b.is_image() || b.x.numel() > (b.is_volume() ? 4096 : 8192)) return {};
  std::vector<int64_t> sizes;
  for (int64_t size : b.x.sizes().slice(2)) sizes.push_back(size * 2);
  const bool nearest = b.coin();
  return b.activated([=](const Tensor& x, Pass&) {
    if (x.dim() == 5) return nearest ? at::upsample_nearest3d(x, sizes) : at::upsample_trilinear3d(x, sizes, false);
    return nearest ? at::upsample_nearest2d(x, sizes) : at::upsample_bilinear2d(x, sizes, false);
  });
}

Forward permuted_and_reshaped(B& b) {
  const bool copied = b.coin();
  return [=](const Tensor& x, Pass&) {
    Tensor turned = x.transpose(1, -1);
    if (copied) turned = turned.contiguous();
    return (turned.reshape({x.size(0), -1}) * 1.25).view(turned.sizes()).transpose(1, -1);
  };
}

Forward expanded_scale(B& b) {
  std::vector<int64_t> sizes(static_cast<size_t>(b.x.dim()), 1);
  sizes[static_cast<size_t>(b.features_dim())] = b.features();
  Tensor scale = b.keep(at::rand(sizes) + 0.5);
  return [=](const Tensor& x, Pass&) { return x * scale.expand(x.sizes()); };
}

Forward mixed_positions(B& b) {
  const int64_t dim = b.x.dim() - 1, size = b.x.size(dim);
  Tensor order = b.buffer(at::randint(0, size, {size}, at::kLong));
  switch (b.pick({0, 1, 2, 3})) {
    case 0:
      return [=](const Tensor& x, Pass&) { return x.index_select(dim, order); };
    case 1:
      return [=](const Tensor& x, Pass&) { return x.flip(dim) + x.roll(1, dim); };
    case 2:
      return [=](const Tensor& x, Pass&) {
        return at::constant_pad_nd(x.narrow(dim, 0, size - size / 2), {0, size / 2});
      };
    default:
      return [=](const Tensor& x, Pass&) {
        auto parts = x.chunk(2, dim);
        return at::cat(std::vector<Tensor>{parts.back(), parts.front()}, dim);
      };
  }
}

Forward reduction(B& b) {
  const int64_t dim = b.x.dim() - 1;
  switch (b.pick({0, 1, 2})) {
    case 0:
      return [=](const Tensor& x, Pass&) { return x - x.mean(dim, true); };
    case 1:
      return [=](const Tensor& x, Pass&) { return x.softmax(dim) * 4; };
    default:
      return [=](const Tensor& x, Pass&) { return at::where(x > 1.5, x.mean() * at::ones_like(x), x); };
  }
}

Forward to_sequence(B& b) {
  if (!b.is_image() || b.x[0][0].numel() > 512 || b.pick({0, 1})) return {};
  return [](const Tensor& x, Pass&) { return x.flatten(2).transpose(1, 2); };
}

Forward to_vectors(B& b) {
  if ((!b.is_image() && !b.is_sequence()) || b.pick({0, 1, 2})) return {};
  if (b.is_sequence()) return [](const Tensor& x, Pass&) { return x.mean(1); };
  return [](const Tensor& x, Pass&) { return x.flatten(2).amax(2); };
}

Forward attention(B& b) {
  if (!b.is_sequence() || b.features() % 2 || b.x.size(1) > 512) return {};
  b.needs_one_derivative_only();
  const int64_t c = b.features();
  Tensor in = b.weight({3 * c, c}), out = b.weight({c, c});
  const bool causal = b.coin();
  const double p = b.coin() ? 0.2 : 0;
  return [=](const Tensor& x, Pass& pass) {
    auto parts = at::linear(x, in).view({x.size(0), x.size(1), 3, 2, c / 2}).permute({2, 0, 3, 1, 4}).unbind();
    Tensor mixed = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, pass.training ? p : 0, causal);
    return at::linear(mixed.transpose(1, 2).reshape(x.sizes()), out);
  };
}

Forward recurrence(B& b) {
  if (!b.is_sequence() || b.x.size(1) > 64) return {};
  b.needs_one_derivative_only();
  const int64_t in = b.features(), hidden = 16;
  const std::vector<Tensor> weights{b.weight({4 * hidden, in}), b.weight({4 * hidden, hidden}),
                                    b.keep(at::zeros({4 * hidden})), b.keep(at::zeros({4 * hidden}))};
  return [=](const Tensor& x, Pass& pass) {
    const Tensor zero = at::zeros({1, x.size(0), hidden}, x.options());
    return std::get<0>(at::lstm(x, {zero, zero}, weights, true, 1, 0.0, pass.training, false, /*batch_first=*/true));
  };
}

Forward shared(B& b) {
  return b.layer_to_share();
}

struct LayerKind {
  const char* name;
  Forward (*make)(B&);
};
constexpr std::array kLayerKinds{LayerKind{"conv", convolution},
                                 LayerKind{"conv", convolution},
                                 LayerKind{"conv_transpose", transposed_convolution},
                                 LayerKind{"linear", linear},
                                 LayerKind{"batch_norm", batch_norm},
                                 LayerKind{"instance_norm", instance_norm},
                                 LayerKind{"group_norm", group_norm},
                                 LayerKind{"layer_norm", layer_norm},
                                 LayerKind{"dropout", dropout},
                                 LayerKind{"residual", residual},
                                 LayerKind{"gated", gated},
                                 LayerKind{"cat", concatenation},
                                 LayerKind{"pool", pool},
                                 LayerKind{"upsample", upsampling},
                                 LayerKind{"permute", permuted_and_reshaped},
                                 LayerKind{"expand", expanded_scale},
                                 LayerKind{"positions", mixed_positions},
                                 LayerKind{"reduce", reduction},
                                 LayerKind{"sequence", to_sequence},
                                 LayerKind{"vectors", to_vectors},
                                 LayerKind{"attention", attention},
                                 LayerKind{"lstm", recurrence},
                                 LayerKind{"shared", shared}};

}  // namespace

/// Returns an existing layer, to be used once more with the same weights.
Forward LayerBuilder::layer_to_share() {
  std::vector<size_t> found;
  for (size_t i = 1; i < net_.layers_.size(); ++i)
    if (at::IntArrayRef(net_.layers_[i].input) == x.sizes()) found.push_back(i);
  return found.empty() ? Forward{} : net_.layers_[found[random_() % found.size()]].forward;
}

/// Returns `forward`, perhaps followed by an activation, in place or not. It may be in place only here, because no
/// other layer uses the result of `forward`.
Forward LayerBuilder::activated(const Forward& forward) {
  using Activation = Tensor (*)(Tensor&);
  static constexpr std::array<Activation, 9> kActivations{
      [](Tensor& y) { return y; },
      [](Tensor& y) { return at::relu(y); },
      [](Tensor& y) { return at::relu_(y); },
      [](Tensor& y) { return at::leaky_relu_(y, 0.01); },
      [](Tensor& y) { return at::leaky_relu_(y, 0.01); },
      [](Tensor& y) { return at::gelu(y); },
      [](Tensor& y) { return at::sigmoid(y); },
      [](Tensor& y) { return at::silu(y); },
      [](Tensor& y) { return at::tanh_(y); },
  };
  return [forward, activate = kActivations[random_() % kActivations.size()]](const Tensor& x, Pass& pass) {
    Tensor y = forward(x, pass);
    return activate(y);
  };
}

void LayerBuilder::add_first_layer() {
  if (is_tokens()) return add("embedding", embedding(*this));
  is_image() ? add("conv", convolution(*this)) : add("linear", linear(*this));
}

void LayerBuilder::add_layer() {
  for (;;) {
    const LayerKind& kind = kLayerKinds[random_() % kLayerKinds.size()];
    if (Forward forward = kind.make(*this)) return add(kind.name, std::move(forward));
  }
}

void LayerBuilder::add(const char* name, Forward forward) {
  Pass pass{.outputs = outputs};
  const auto before = x.sizes().vec();
  x = forward(x, pass);
  outputs.push_back(x);
  net_.layers_.push_back({std::move(forward), before, x.sizes().vec()});
  net_.description_ += str(" ", name);
}

}  // namespace spillway::testing
